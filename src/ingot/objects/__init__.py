"""Object stores: a folder on a local file system, or an S3 bucket."""
