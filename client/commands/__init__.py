"""nebula-ctl's commands, one module a subject. ``client.ctl`` imports only the module that the command line names."""
