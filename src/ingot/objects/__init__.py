"""Where the bytes of blobs are: a folder, or a bucket."""
