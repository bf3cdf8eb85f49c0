UPDATE blob_totals SET blobs = blobs + ?, bytes = bytes + ?
