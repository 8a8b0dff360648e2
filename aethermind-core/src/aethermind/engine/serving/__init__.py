"""An engine as a server sees it, shared by many tasks of an event loop, each of which sees its own request grow."""

__all__: list[str] = []
