"""An engine shared by the tasks of an event loop: the client interface, and the client of an engine in this process."""

__all__: list[str] = []
