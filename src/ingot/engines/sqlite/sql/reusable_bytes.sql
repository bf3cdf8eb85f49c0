-- Pages that nothing is in any more: the file does not grow before they are used again.
SELECT CAST(json_array((SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size)) AS BLOB)
