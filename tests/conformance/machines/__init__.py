"""State machines: random lives of jobs, told to a store and to a model of plain dictionaries, compared step by step."""
