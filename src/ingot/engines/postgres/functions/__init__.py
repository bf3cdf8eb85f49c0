"""The functions of the schema, applied whole at every migration."""
