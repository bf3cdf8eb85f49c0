SELECT epoch FROM store
