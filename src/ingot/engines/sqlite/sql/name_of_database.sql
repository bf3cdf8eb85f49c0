SELECT database FROM object_store
