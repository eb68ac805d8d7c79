"""A mesh in memory and in virtual time: the real cores of routers and workers, engines whose steps take time
on a clock that jumps from event to event, and lines that carry so many bytes a second."""
