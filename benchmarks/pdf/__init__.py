"""PDFs that are uploaded, converted by an isolated worker, and downloaded, compared with converters that run alone.

`python -m benchmarks.pdf --help`
"""
