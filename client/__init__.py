"""NebulaGrid's Python SDK (``client.sdk.NebulaClient``) and command line (``nebula-ctl``). No Django."""

__version__ = "0.1.0"
