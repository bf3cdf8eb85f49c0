"""Conversion of PDFs and images of text to Markdown, page by page."""
