"""PDFs on their whole way: uploaded, converted by an isolated worker, fetched; beside converters that run alone.

`python -m benchmarks.pdf --help`
"""
