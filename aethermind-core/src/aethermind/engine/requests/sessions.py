"""Sessions: conversations whose keys and values are kept for their next turn.

A session holds the blocks of its last completed turn. With a swap store it holds them as a parked sequence (Standby),
which is swapped out when the cache fills, the least recently used first, and swapped in when its next turn is admitted.
Without one, its blocks are pinned in the prefix cache (Warm), which evicts them last. A protected session is neither
swapped out nor dropped, so requests cannot take its blocks: one that cannot run even alone without them ends with an
error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.sequence import CacheState
from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.cache.prefix_cache import CachedBlock, HashedPrefixCache
    from aethermind.engine.requests.request import Request
    from aethermind.engine.requests.session_files import SessionFiles

__all__ = ["SessionInfo", "Sessions"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session.

    Attributes:
        state: standby (in device memory), swapped (in host memory), warm (in the prefix cache, until it is evicted),
            or saved (in a file only).
        num_tokens: tokens whose keys and values it holds, whole blocks only.
        idle_s: seconds since its last turn; 0 for one that is in a file only.
    """

    name: str
    state: str
    num_tokens: int
    is_protected: bool = False
    is_saved: bool = False
    idle_s: float = 0.0


@dataclass(slots=True)
class _Session:
    """A session in memory. `used_s` is when its last turn ended; `pins` are its blocks in the prefix cache, if it is no
    parked sequence.
    """

    used_s: float
    token_ids: Sequence[int]
    extra_key: bytes
    num_blocks: int = 0
    pins: list[CachedBlock] = field(default_factory=list)
    is_protected: bool = False
    is_saved: bool = False


class Sessions:
    """The sessions of an engine, within limits of their number, their blocks and their time to live. Not thread-safe.

    Keeping a session reserves nothing: a running request gets its blocks if no others can be freed.
    """

    def __init__(
        self,
        prefix_cache: HashedPrefixCache | None,
        max_sessions: int,
        max_blocks: int,
        ttl_s: float,
        clock: Callable[[], float],
        kv_cache: KVCache | None = None,
        files: SessionFiles | None = None,
        *,
        parks_sequences: bool = False,
    ) -> None:
        """Keep sessions in `prefix_cache`, if there is one; with `parks_sequences`, as parked sequences of `kv_cache`.

        A session expires `ttl_s` seconds after its last turn. `files` are those of saved sessions.
        """
        self._prefix_cache = prefix_cache
        self._max_sessions = max_sessions
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s
        self._clock = clock
        self._cache = kv_cache
        self._files = files
        self._parks_sequences = parks_sequences
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self.num_blocks = 0

    def __len__(self) -> int:
        """The number of sessions that have not expired. Any thread may call this."""
        oldest_s = self._clock() - self._ttl_s
        return sum(session.used_s > oldest_s for session in list(self._sessions.values()))

    # -- turns -----------------------------------------------------------------------------------------------

    def keep(self, name: str, token_ids: Sequence[int], extra_key: bytes) -> None:
        """Replace the session by its newest turn. Above the limits, the least recently used sessions are dropped."""
        if self._prefix_cache is None:
            return
        session = _Session(self._clock(), token_ids, extra_key)
        if name in self._sessions:
            was_protected = self._sessions[name].is_protected
            self._drop(name)
            session.is_protected = was_protected and self._may_protect(len(token_ids))
            if session.is_protected != was_protected:
                _log.warning("session %s is too long now to be protected", name)
        if self._parks_sequences or session.is_protected:
            self._park(name, session)
        else:
            session.pins = self._prefix_cache.pin(token_ids, extra_key)
            session.num_blocks = len(session.pins)
        self._sessions[name] = session
        self.num_blocks += session.num_blocks
        self.expire()
        while len(self._sessions) > self._max_sessions or self.num_blocks > self._max_blocks:
            oldest = next((name for name, session in self._sessions.items() if not session.is_protected), None)
            if oldest is None:
                break
            self._drop(oldest)

    def touch(self, name: str) -> None:
        """Record that the session's next turn is about to be admitted, so that it is swapped out last."""
        if self._cache is not None and name in self._sessions:
            self._cache.touch(_sequence_id(name))

    def is_swapped(self, request: Request) -> bool:
        """Whether the session of a request is swapped out and has blocks of its prompt that the prefix cache lacks."""
        session, cache = self._sessions.get(request.session), self._cache
        if session is None or cache is None or session.extra_key != request.extra_key:
            return False
        if cache.state(_sequence_id(request.session)) is not CacheState.SWAPPED:
            return False
        num_common = _num_common(session.token_ids, request.all_token_ids[:-1])
        num_wanted = min(num_common // cache.spec.block_size, session.num_blocks)
        return len(cache.match(request.all_token_ids, request.extra_key)) < num_wanted

    def resume(self, request: Request) -> None:
        """Swap the session of a request in, so that the request finds its blocks. Nothing happens if too few are free.

        If the session is in device memory, its recurrent state is published as a snapshot again, because the prefix
        cache may have evicted the earlier one.
        """
        cache, sequence_id = self._cache, _sequence_id(request.session)
        if self.is_swapped(request):
            self._swap_in(request.session, self._sessions[request.session])
        elif cache is not None and cache.is_recurrent and cache.state(sequence_id) is CacheState.STANDBY:
            cache.publish(sequence_id, self._sessions[request.session].token_ids)

    def expire(self) -> None:
        """Drop the sessions that have expired."""
        oldest_s = self._clock() - self._ttl_s
        expired = []
        for name, session in self._sessions.items():
            if session.used_s > oldest_s:
                break
            if not session.is_protected:
                expired.append(name)
        for name in expired:
            self._drop(name)

    # -- management ------------------------------------------------------------------------------------------

    def describe(self, prefix: str = "") -> list[SessionInfo]:
        """Describe the sessions whose names begin with `prefix`, those in memory first."""
        self.expire()
        saved = {} if self._files is None else self._files.lengths(prefix)
        known = [self._info(name, is_saved=name in saved) for name in self._sessions if name.startswith(prefix)]
        names = {info.name for info in known}
        return known + [
            SessionInfo(name, "saved", num_tokens, is_saved=True)
            for name, num_tokens in saved.items()
            if name not in names
        ]

    def find(self, name: str) -> list[SessionInfo]:
        """Describe the session of this name; empty if there is none."""
        num_tokens = None if self._files is None else self._files.length(name)
        if name in self._sessions:
            return [self._info(name, is_saved=num_tokens is not None)]
        return [] if num_tokens is None else [SessionInfo(name, "saved", num_tokens, is_saved=True)]

    def delete(self, name: str) -> list[SessionInfo]:
        """Delete a session and its file; describes what was deleted, empty if there was none.

        InvalidArgumentError, and nothing is deleted, if its file cannot be.
        """
        found = self.find(name)
        if self._files is not None:
            self._files.delete(name)
        if name in self._sessions:
            self._drop(name)
        return found

    def protect(self, name: str, *, is_protected: bool) -> list[SessionInfo]:
        """Protect a session from expiry, swapping and eviction, or end its protection.

        InvalidArgumentError if protected sessions would hold more than half of the cache.
        """
        session = self._sessions.get(name)
        if session is None:
            return []
        cache = self._require_cache()
        if is_protected and not session.is_protected:
            if not self._may_protect(len(session.token_ids)):
                raise InvalidArgumentError(
                    "Protected sessions may hold half of the KV cache, and with this one they would hold more. Lift "
                    "the protection of another, or raise num_kv_blocks, or max_num_seqs for recurrent layers."
                )
            self._bring_into_memory(name, session)
        session.is_protected = is_protected
        cache.pin(_sequence_id(name), is_protected)
        return self.find(name)

    def save(self, name: str) -> list[SessionInfo]:
        """Write a session to its file; empty if there is none in memory."""
        session, files = self._sessions.get(name), self._require_files()
        if session is None:
            return []
        cache = self._require_cache()
        self._bring_into_memory(name, session)
        token_ids = session.token_ids[: cache.num_tokens(_sequence_id(name)) + 1]  # the last is not computed
        files.save(name, token_ids, cache.save(_sequence_id(name), files.contents, token_ids).data)
        session.is_saved = True
        return self.find(name)

    def save_all(self, on_saved: Callable[[], object] = lambda: None) -> None:
        """Write all sessions that have changed since they were saved; `on_saved` is called after each.

        Errors are logged. Sessions in device memory come first, because swapping others in may drop them.
        """
        if self._files is None or self._cache is None:
            return
        changed = [name for name, session in self._sessions.items() if not session.is_saved]
        for name in sorted(changed, key=self._is_swapped):
            try:
                self.save(name)
            except AetherMindError as error:
                _log.warning("session %s is not saved: %s", name, error)
            on_saved()

    def load(self, name: str) -> list[SessionInfo]:
        """Load a session from its file in place of the one in memory; empty if there is no file.

        The protection of the one in memory is kept. After an error the one in memory remains: CacheContentError for a
        damaged file or one of another model, InvalidArgumentError for one that cannot be read or does not fit.
        """
        cache, files = self._require_cache(), self._require_files()
        stored = files.read(name)
        if stored is None or self._prefix_cache is None:
            return []
        token_ids, data = stored
        sequence_id, extra_key = f"loading {name}", files.extra_key(data)
        outcome = cache.load(sequence_id, data, files.contents, token_ids).outcome
        if outcome is not CacheOutcome.OK:
            raise InvalidArgumentError(
                f"A session of {len(token_ids)} tokens cannot be loaded now: {outcome.value}. Try again later."
            )
        cache.release(sequence_id, token_ids)  # its blocks are published
        self.keep(name, token_ids, extra_key)
        if name in self._sessions:  # not if it is larger than all that sessions may hold
            self._sessions[name].is_saved = True
        return self.find(name)

    def load_if_saved(self, name: str) -> None:
        """Load a session that is saved and not in memory, before its next turn.

        Errors are logged; the prompt is then computed.
        """
        if self._files is None or name in self._sessions or not self._files.has(name):
            return
        try:
            self.load(name)
        except AetherMindError as error:
            _log.warning("session %s is computed again: %s", name, error)

    # -- sequences -------------------------------------------------------------------------------------------

    def _is_swapped(self, name: str) -> bool:
        return self._require_cache().state(_sequence_id(name)) is CacheState.SWAPPED

    def _info(self, name: str, *, is_saved: bool) -> SessionInfo:
        session, state, block_size = self._sessions[name], CacheState.WARM, 0
        if self._cache is not None:
            block_size = self._cache.spec.block_size
            state = self._cache.state(_sequence_id(name))
        state = CacheState.WARM if state is CacheState.FREE else state
        idle_s = max(0.0, self._clock() - session.used_s)
        num_tokens = session.num_blocks * block_size
        return SessionInfo(name, state.value, num_tokens, session.is_protected, is_saved, idle_s)

    def _park(self, name: str, session: _Session) -> None:
        """Open the turn's blocks, which its request has just published, as a parked sequence."""
        cache = self._require_cache()
        sequence_id, known = _sequence_id(name), session.token_ids[: cache.max_model_len]
        opened = cache.open(sequence_id, known, session.extra_key)
        assert opened.outcome is CacheOutcome.OK, f"session {name}: {opened.outcome.value}"
        session.num_blocks = opened.num_cached_tokens // cache.spec.block_size
        cache.pin(sequence_id, session.is_protected)
        cache.park(sequence_id, may_drop=True)

    def _swap_in(self, name: str, session: _Session) -> bool:
        """Swap a session in and publish its blocks; False if too few are free."""
        cache, sequence_id = self._require_cache(), _sequence_id(name)
        if cache.resume(sequence_id) is not CacheOutcome.OK:
            return False
        cache.publish(sequence_id, session.token_ids)
        cache.park(sequence_id, may_drop=True)
        return True

    def _bring_into_memory(self, name: str, session: _Session) -> None:
        """Make a session a parked sequence in device memory, if it is not one; InvalidArgumentError if that fails."""
        cache = self._require_cache()
        state = cache.state(_sequence_id(name))
        if state is CacheState.FREE:
            before = session.num_blocks
            self._park(name, session)
            self.num_blocks += session.num_blocks - before
        elif state is CacheState.SWAPPED and not self._swap_in(name, session):
            raise InvalidArgumentError(
                "The session is swapped out, and too few blocks of the KV cache are free now. Try again later."
            )
        if cache.state(_sequence_id(name)) is not CacheState.STANDBY:
            raise InvalidArgumentError("The KV cache is full, and the session does not fit. Try again later.")

    def _may_protect(self, num_tokens: int) -> bool:
        """Whether protected sessions would hold at most half of the cache with one more of `num_tokens`."""
        cache = self._require_cache()
        protected = [each.num_blocks for each in self._sessions.values() if each.is_protected]
        if cache.is_recurrent and 2 * (len(protected) + 1) > cache.spec.max_sequences:
            return False
        return 2 * (sum(protected) + cache.spec.num_blocks_for(num_tokens)) <= cache.pool.num_blocks

    def _drop(self, name: str) -> None:
        assert self._prefix_cache is not None, "sessions are kept in a cache"
        session = self._sessions.pop(name)
        self.num_blocks -= session.num_blocks
        self._prefix_cache.unpin(session.pins)
        if self._cache is not None:
            self._cache.pin(_sequence_id(name), is_pinned=False)
            self._cache.release(_sequence_id(name))

    def _require_cache(self) -> KVCache:
        assert self._cache is not None, "an engine gives its cache"
        return self._cache

    def _require_files(self) -> SessionFiles:
        if self._files is None:
            raise InvalidArgumentError("Sessions are not saved without a directory; set session_dir.")
        return self._files


def _sequence_id(name: str) -> str:
    return f"session {name}"


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    end = min(len(first), len(second))
    return next((index for index in range(end) if first[index] != second[index]), end)
