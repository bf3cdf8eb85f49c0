SELECT clock FROM store
