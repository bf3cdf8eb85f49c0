"""Documents: PDFs and pictures of text, read page by page into Markdown."""
