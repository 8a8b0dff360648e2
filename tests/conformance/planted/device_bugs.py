"""Bugs of memory, copies, streams, events and of what runs a plan."""

from __future__ import annotations

from tests.conformance.planted.bug import Bug

__all__ = ["DEVICE_BUGS"]

_HAL, _MODELS = ("--suite", "hal"), ("--suite", "models")
_FAILS = ("--suite", "operators", "-k", "fails_is")
_EITHER = (*_HAL, *_MODELS)


def _bug(name: str, breaks: str, old: str, new: str, cases: tuple[str, ...] = _HAL, survives: str = "") -> Bug:
    return Bug(name, breaks, "device.py", old, new, cases, survives)


_RELEASE = "is_host_accessible=False, release=host.free, owner=host)"
_MEMORY = (
    _bug("leak", "buffers are never freed", _RELEASE, "is_host_accessible=False, release=lambda: self.__dict__.setdefault('kept', []).append(host), owner=host)"),
    _bug("leak-behind-the-counters", "memory is kept although it counts as freed", "        host = self._host.alloc(nbytes, kind)\n", "        host = self._host.alloc(nbytes, kind)\n        self.__dict__.setdefault('kept', []).append(host.owner)\n"),
    _bug("alignment", "addresses at odd multiples of 32", "address = host.address + TAG", "host = self._host.alloc(nbytes + 32); address = host.address + TAG + 32"),
    _bug("short", "buffers are a little shorter than asked for", "return Buffer(host.device, address, nbytes,", "return Buffer(host.device, address, max(nbytes - 1, 0),"),
    _bug("kind", "pinned memory says that it is of the device", "            return host\n", "            host.kind = MemoryKind.DEVICE\n            return host\n"),
    _bug("accessible", "device memory claims that the host may look into it", "is_host_accessible=False, release", "is_host_accessible=True, release"),
    _bug("negative-size", "a negative size is taken for none", "host = self._host.alloc(nbytes, kind)", "host = self._host.alloc(max(nbytes, 0), kind)"),
    _bug("out-of-memory", "no memory is a MemoryError", "host = self._host.alloc(nbytes, kind)", "host = self._host.alloc(nbytes, kind) if nbytes < 1 << 40 else bytearray(1 << 62)"),
    _bug("empty", "an empty buffer is refused", "host = self._host.alloc(nbytes, kind)", "host = self._host.alloc(nbytes, kind) if nbytes else None"),
    _bug("stats-peak", "the peak is what is in use now", "return self._host.stats()", "now = self._host.stats(); return MemoryStats(now.allocated_bytes, now.reserved_bytes, now.allocated_bytes, now.num_allocations)"),
    _bug("stats-count", "allocations are not counted", "return self._host.stats()", "now = self._host.stats(); return MemoryStats(now.allocated_bytes, now.reserved_bytes, now.peak_bytes, 0)"),
    _bug("stats-bytes", "bytes in use are counted in kilobytes", "return self._host.stats()", "now = self._host.stats(); return MemoryStats(now.allocated_bytes & -1024, now.reserved_bytes, now.peak_bytes, now.num_allocations)"),
    _bug("reserved", "nothing is reserved", "return self._host.stats()", "now = self._host.stats(); return MemoryStats(now.allocated_bytes, 0, now.peak_bytes, now.num_allocations)"),
    _bug("shared-address", "two buffers at one address", "address = host.address + TAG", "self.__dict__.setdefault('first', {}).setdefault(nbytes, host); address = self.first[nbytes].address + TAG", _EITHER),
    _bug("cached-blocks", "one block of a size is handed out again before it is freed", "        address = host.address + TAG\n", "        seen = self.__dict__.setdefault('seen', [])\n        seen.append(host)\n        address = (seen[-2] if len(seen) > 1 and seen[-2].nbytes == nbytes else host).address + TAG\n", _EITHER),
    _bug("wrong-device", "buffers of another device", "return Buffer(host.device,", "return Buffer(DeviceId(NAME, 1),"),
)  # fmt: skip

_TRANSFER = (
    _bug("copy-unchecked", "copies of other shapes and dtypes", "        check_copy(destination, source)\n        self._count(destination, source)\n        ctypes", "        self._count(destination, source)\n        ctypes"),
    _bug("copy-async-unchecked", "copies on a stream of other shapes and dtypes", "        check_copy(destination, source)\n        stream.check()", "        stream.check()"),
    _bug("copy-late", "a copy returns before it is done", "        ctypes.memmove(host_address(destination), host_address(source), source.nbytes)\n", "        threading.Thread(target=ctypes.memmove, args=(host_address(destination), host_address(source), source.nbytes)).start()\n"),
    _bug("copy-short", "the last byte of a copy is left out", "ctypes.memmove(host_address(destination), host_address(source), source.nbytes)", "ctypes.memmove(host_address(destination), host_address(source), max(source.nbytes - 1, 0))"),
    _bug("copy-4096", "copies beyond a page stop there", "ctypes.memmove(host_address(destination), host_address(source), source.nbytes)", "ctypes.memmove(host_address(destination), host_address(source), min(source.nbytes, 4096))"),
    _bug("copy-32mib", "copies beyond 32 MiB stop there", "ctypes.memmove(host_address(destination), host_address(source), source.nbytes)", "ctypes.memmove(host_address(destination), host_address(source), min(source.nbytes, 1 << 25))"),
    _bug("copy-offset", "offsets into a buffer are forgotten by copies", "return tensor.address if tensor.buffer.is_host_accessible else tensor.address - TAG", "return tensor.address if tensor.buffer.is_host_accessible else tensor.buffer.address - TAG"),
    _bug("async-at-once", "a copy on a stream overtakes it", "stream.submit(partial(ctypes.memmove, host_address(destination), host_address(source), source.nbytes))", "ctypes.memmove(host_address(destination), host_address(source), source.nbytes)"),
    _bug("async-snapshot", "a copy on a stream reads its source when it is submitted", "stream.submit(partial(ctypes.memmove, host_address(destination), host_address(source), source.nbytes))", "kept = ctypes.string_at(host_address(source), source.nbytes); stream.submit(partial(ctypes.memmove, host_address(destination), kept, source.nbytes))"),
    _bug("async-lost", "small copies within the device are lost", "stream.submit(partial(ctypes.memmove, host_address(destination), host_address(source), source.nbytes))", "stream.submit(partial(ctypes.memmove, host_address(destination), host_address(source), source.nbytes)) if source.nbytes > 64 or source.buffer.is_host_accessible else None"),
    _bug("async-destroyed", "copies on a destroyed stream are done", "        stream.check()\n        self._count(destination, source)\n        stream.submit(partial", "        self._count(destination, source)\n        stream = WorkStream() if stream._is_destroyed else stream\n        stream.submit(partial"),
    _bug("fill-byte", "bytes beyond 255 wrap", "        check_fill(destination, byte)\n", "        check_fill(destination, byte & 255)\n"),
    _bug("fill-gaps", "what is not contiguous is filled", "        check_fill(destination, byte)\n", "        InvalidArgument = check_fill(destination, byte) if destination.is_contiguous else None\n"),
    _bug("fill-late", "a fill without a stream goes to one", "is None:\n            work()\n", "is None:\n            self.__dict__.setdefault('own', WorkStream()).submit(work)\n"),
    _bug("fill-at-once", "a fill on a stream overtakes it", "            stream.submit(work)\n", "            stream.check()\n            work()\n"),
    _bug("fill-beyond", "a fill writes one byte more", "byte, destination.nbytes)", "byte, destination.nbytes + 1)"),
    _bug("fill-words", "a fill leaves the bytes behind the last whole word", "byte, destination.nbytes)", "byte, destination.nbytes & -4)"),
    _bug("stats-down", "what came from the device is counted once too often, then not", "return self._stats\n", "self._stats = TransferStats(0, 0) if self._stats.device_to_host_bytes > 300 else self._stats; return self._stats\n"),
)  # fmt: skip

_STREAMS = (
    _bug("query-true", "a stream always says that it is idle", "return not self._work\n\n    def synchronize", "return True\n\n    def synchronize"),
    _bug("query-false", "a stream never says that it is idle", "return not self._work\n\n    def synchronize", "return False\n\n    def synchronize"),
    _bug("query-waits", "the last one of two counts as idle", "return not self._work\n\n    def synchronize", "return len(self._work) < 2\n\n    def synchronize"),
    _bug("synchronize-early", "a stream is waited for until one piece is left", "self._changed.wait_for(lambda: not self._work)\n", "self._changed.wait_for(lambda: len(self._work) < 2)\n"),
    _bug("synchronize-never", "nobody waits for a stream", "self._changed.wait_for(lambda: not self._work)\n", "pass\n"),
    _bug("synchronize-timeout", "a stream is waited for up to a millisecond", "self._changed.wait_for(lambda: not self._work)\n", "self._changed.wait_for(lambda: not self._work, 0.001)\n"),
    _bug("swallowed", "errors of work are swallowed", "                self._error = error\n", "                del error\n", _FAILS),
    _bug("other-error", "errors of work come as they are", 'raise DeviceError(f"Work on the stream failed: {self._error}") from self._error', "raise self._error", _FAILS),
    _bug("wait-ignored", "a stream does not wait for events", "self.submit(event.mark.wait)", "self.check()"),
    _bug("wait-late", "a stream looks at the mark when it comes to it", "self.submit(event.mark.wait)", "self.submit(lambda: event.mark.wait())"),
    _bug("wait-short", "a stream waits for an event for a millisecond", "self.submit(event.mark.wait)", "self.submit(lambda mark=event.mark: mark._reached.wait(0.001))"),
    _bug("wait-destroyed", "a destroyed stream waits for events", "        assert isinstance(event, WorkEvent)\n        self.submit(", "        assert isinstance(event, WorkEvent)\n        self._is_destroyed or self.submit("),
    _bug("destroy-drops", "what is left is dropped with a stream", "            self.synchronize()\n        finally:\n            self._is", "            self.check(); self._work = deque(list(self._work)[:1])\n        finally:\n            self._is"),
    _bug("destroy-early", "a stream is destroyed while it works", "            self.synchronize()\n        finally:\n            self._is", "            self.check()\n        finally:\n            self._is"),
    _bug("destroy-twice", "a stream can be destroyed twice", "        try:\n            self.synchronize()\n        finally:\n            self._is", "        try:\n            self._is_destroyed or self.synchronize()\n        finally:\n            self._is"),
    _bug("destroyed-usable", "a destroyed stream goes on", "        if self._is_destroyed:\n            raise DeviceError(", "        if False:\n            raise DeviceError("),
    _bug("thread-kept", "the thread of a destroyed stream stays", "                if not self._work:\n                    return\n", "                while not self._work:\n                    self._changed.wait()\n"),
    _bug("last-in-first-out", "the newest piece of work runs first", "                work = self._work[0]\n", "                work = self._work[-1]\n"),
    _bug("default-new", "every default stream is a new one", "        return self._default\n", "        return self.create(index)\n"),
    _bug("index-unchecked", "streams of devices that are not there", "        check_index(index)\n        stream = WorkStream()", "        stream = WorkStream()"),
    _bug("default-unchecked", "the default stream of a device that is not there", "        check_index(index)\n        return self._default", "        return self._default"),
)  # fmt: skip

_EVENTS = (
    _bug("record-at-once", "an event is reached when it is recorded", "stream.submit(self.mark.reach)", "stream.check(); self.mark.reach()"),
    _bug("record-once", "recording again does not move the mark", "self.mark, self._is_recorded = Mark(), True\n        stream.submit(self.mark.reach)", "self.mark = self.mark if self._is_recorded else Mark(); self._is_recorded = True\n        stream.submit(self.mark.reach)"),
    _bug("record-destroyed", "an event is recorded on a destroyed stream", "        stream.check()\n        self.mark, self._is_recorded = Mark(), True\n        stream.submit(self.mark.reach)", "        self.mark, self._is_recorded = Mark(), True\n        self.mark.reach() if stream._is_destroyed else stream.submit(self.mark.reach)"),
    _bug("event-query-true", "an event always says that it is reached", "return self.mark.is_reached()", "return True"),
    _bug("event-query-false", "an event never says that it is reached", "return self.mark.is_reached()", "return False"),
    _bug("event-sync", "nobody waits for an event", "    def synchronize(self) -> None:\n        self.mark.wait()\n", "    def synchronize(self) -> None:\n        return None\n"),
    _bug("unrecorded", "an event that was never recorded is never reached", "        self.mark.reach()\n\n    def record", "        pass\n\n    def record"),
    _bug("elapsed-s", "time backwards", "return (end.mark.at - self.mark.at) * 1000", "return (self.mark.at - end.mark.at) * 1000"),
    _bug("elapsed-unrecorded", "time of an event that was not recorded", "or not event._is_recorded or", "or"),
    _bug("elapsed-untimed", "time of events without timing", "if not event._has_timing or not", "if not"),
    _bug("elapsed-unreached", "time of what is not reached", "or event.mark.at is None:\n                raise", "or False:\n                raise"),
)  # fmt: skip

_DEVICES = (
    _bug("properties-unchecked", "properties of a device that is not there", '        check_index(index)\n        return DeviceProperties("threads', '        return DeviceProperties("threads'),
    _bug("current-unchecked", "a device that is not there becomes current", "        check_index(index)\n\n    def synchronize", "        pass\n\n    def synchronize"),
    _bug("device-default-only", "the device waits for its default stream", "for stream in list(self._streams.alive):\n            if not stream._is_destroyed:\n                stream.synchronize()\n\n\ndef", "for stream in [self._streams._default]:\n            if not stream._is_destroyed:\n                stream.synchronize()\n\n\ndef"),
    _bug("device-never", "nobody waits for the device", "for stream in list(self._streams.alive):\n            if not stream._is_destroyed:\n                stream.synchronize()\n\n\ndef", "for stream in ():\n            if not stream._is_destroyed:\n                stream.synchronize()\n\n\ndef"),
    _bug("nameless", "a device without a name", 'DeviceProperties("threads of this process", 0, 1)', 'DeviceProperties("", 0, 1)'),
    _bug("coreless", "a device without cores", 'DeviceProperties("threads of this process", 0, 1)', 'DeviceProperties("threads of this process", 0, 0)'),
    _bug("wrong-exception", "what is not there is a ValueError", "raise DeviceError(f\"There is no device", "raise ValueError(f\"There is no device"),
    _bug("no-float32", "a device without float32", "(DType.FLOAT32, DType.BFLOAT16), is_host", "(DType.BFLOAT16,), is_host"),
    _bug("block-sizes", "blocks of 64 only", "is_host_accessible=False, is_asynchronous=True", "is_host_accessible=False, block_sizes=(64,), is_asynchronous=True"),
)  # fmt: skip

_PROGRAMS = (
    _bug("sizes-kept", "sizes of the first run are used for all", "        sizes = dict(zip(self._plan.symbols, symbols, strict=True))\n", "        self.sizes = sizes = self.__dict__.get('sizes') or dict(zip(self._plan.symbols, symbols, strict=True))\n", _MODELS),
    _bug("sizes-late", "sizes are those of the run that comes last", "stream.submit(partial(self._run, self._plan.steps[begin:end], sizes))", "self.sizes = sizes; stream.submit(lambda: self._run(self._plan.steps[begin:end], self.sizes))", _MODELS),
    _bug("begin-ignored", "parts of a plan begin at its first step", "self._plan.steps[begin:end]", "self._plan.steps[0:end]", _MODELS, "steps are functions of their inputs: to run them again changes nothing"),
    _bug("end-ignored", "parts of a plan go to its end", "self._plan.steps[begin:end]", "self._plan.steps[begin:]", _MODELS),
    _bug("last-step", "the last step is left out", "self._plan.steps[begin:end]", "self._plan.steps[begin : end - (end == len(self._plan.steps) > 1)]", _MODELS),
    _bug("beside-the-stream", "a plan runs in the caller's thread", "stream.submit(partial(self._run, self._plan.steps[begin:end], sizes))", "self._run(self._plan.steps[begin:end], sizes)", _MODELS),
    _bug("own-thread", "a plan runs in a thread of its own", "stream.submit(partial(self._run, self._plan.steps[begin:end], sizes))", "threading.Thread(target=self._run, args=(self._plan.steps[begin:end], sizes)).start()", _MODELS),
    _bug("offsets-ignored", "offsets of operands are ignored", "addresses_in_run(self._plan, self._memory, sizes)\n", "lambda operand: self._memory[operand.place, operand.name]\n", _MODELS),
    _bug("attributes-kept", "attributes of the first step are those of all", "function(inputs, outputs, step.attributes)", "function(inputs, outputs, {**step.attributes, **{k: v for k, v in steps[0].attributes.items() if k in step.attributes}})", _MODELS, "the steps of one plan that share a kind of attribute share its value in the models of the kit, but for one"),
    _bug("states-cleared", "states are zeros at the start of every run", "        for step in steps:\n", "        for step in steps:\n            for one in step.outputs:\n                if one.place.value == 'state':\n                    array(one)[...] = 0\n", _MODELS),
    _bug("growing", "a megabyte is kept of every run", "        for step in steps:\n", "        self.__dict__.setdefault('kept', []).append(b'x' * 1_000_000)\n        for step in steps:\n", _MODELS),
    _bug("growing-a-little", "8 KiB are kept of every run", "        for step in steps:\n", "        self.__dict__.setdefault('kept', []).append(bytes(range(256)) * 32)\n        for step in steps:\n", _MODELS),
    _bug("failing-step-skipped", "a step that fails is skipped", "            step.kernel.function(inputs, outputs, step.attributes)\n", "            try:\n                step.kernel.function(inputs, outputs, step.attributes)\n            except Exception:\n                pass\n", _FAILS),
    _bug("inputs-copied", "kernels write to copies of states", "outputs = [array(operand) for operand in step.outputs]", "outputs = [array(one).copy() if one.place.value == 'state' else array(one) for one in step.outputs]", _MODELS),
    _bug("not-implemented", "no executable", "        return Program(plan, memory)\n", "        return None\n", _MODELS),
)  # fmt: skip

DEVICE_BUGS: tuple[Bug, ...] = (*_MEMORY, *_TRANSFER, *_STREAMS, *_EVENTS, *_DEVICES, *_PROGRAMS)
