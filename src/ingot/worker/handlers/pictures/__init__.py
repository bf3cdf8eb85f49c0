"""Reading, resizing and writing of images for the handler `image`."""
