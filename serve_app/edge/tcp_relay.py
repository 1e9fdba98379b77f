"""A TCP relay between the regions of one machine: what passes can be delayed, throttled, stalled or cut.

A process of its own, ``python -m serve_app.edge.tcp_relay FOLDER``. Its links come as JSON on standard input; one line
on standard output tells the ports it listens on; from then on it is ruled over the socket ``relay.sock`` in ``FOLDER``,
which nobody else may enter. A line in is ``{"set": {LINK: {...}}}`` or ``{}``, a line out is the state of every link.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import struct
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

#: ``stalled``: connections stay, and nothing gets through. ``cut``: connections are reset, new ones are refused.
Flow = Literal["open", "stalled", "cut"]

CHUNK_BYTES: Final = 1 << 16
#: On the way in one direction of a connection; what exceeds it waits at its sender, as on a real line.
MOST_CHUNKS: Final = 64
BACKLOG: Final = 128
#: A slow line is slow in small steps, not one chunk at once after a long time.
THROTTLE_STEP_S: Final = 0.05
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a link treats what passes. ``delay_ms`` is each way; ``bytes_per_s`` of ``None`` is without limit."""

    target: str
    flow: Flow = "open"
    delay_ms: float = 0.0
    bytes_per_s: float | None = None

    def changed(self, **fields: Any) -> Setting:
        """This setting with other fields.

        Raises:
            ValueError: naming the field, its value and what is allowed.
        """
        unknown = sorted(fields.keys() - set(self.__slots__))
        if unknown:
            raise ValueError(f"{unknown[0]} is no setting of a link; allowed: {', '.join(self.__slots__)}")
        new = replace(self, **fields)
        if new.flow not in get_args(Flow):
            raise ValueError(f"flow {new.flow!r}; allowed: {', '.join(get_args(Flow))}")
        if not isinstance(new.delay_ms, int | float) or not 0 <= new.delay_ms <= 60_000:
            raise ValueError(f"delay_ms {new.delay_ms!r}; allowed: 0 to 60000")
        rate = new.bytes_per_s
        if rate is not None and (not isinstance(rate, int | float) or not 1 <= rate <= 1e12):
            raise ValueError(f"bytes_per_s {rate!r}; allowed: 1 to 1e12, or null")
        _address(new.target)
        return new


def _address(text: Any) -> tuple[str, int]:
    host, found, port = str(text).rpartition(":")
    if not found or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is no address; allowed: HOST:PORT")
    return host, int(port)


def _bound(choices: list[str]) -> socket.socket:
    """A socket at the first of these addresses that is free.

    Raises:
        OSError: when none is.
    """
    for address in choices[:-1]:
        with contextlib.suppress(OSError):
            return _bound_at(_address(address))
    return _bound_at(_address(choices[-1]))


def _bound_at(address: tuple[str, int]) -> socket.socket:
    """A socket that listens, with a port of its own: one the kernel chose would be given back at a cut."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as first:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setblocking(False)
        for each in (first, listener):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            first.bind(address)
            listener.bind(first.getsockname())
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener


class _Link:
    """One listening port, and the connections that came in through it."""

    def __init__(self, listen: list[str], setting: Setting) -> None:
        self.setting = setting
        self._flowing, self._accepting = asyncio.Event(), asyncio.Event()
        self._pairs: set[asyncio.Task[None]] = set()
        self._listener = _bound(listen)
        self._flow("open")
        self.apply(setting)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def told(self) -> dict[str, Any]:
        return {**asdict(self.setting), "port": self.port, "connections": len(self._pairs)}

    def apply(self, setting: Setting) -> None:
        """Takes a setting; what is on the way feels it too, connections that are there keep their target."""
        before, self.setting = self.setting.flow, setting
        if setting.flow != before:
            self._flow(setting.flow)

    def _flow(self, flow: Flow) -> None:
        if flow == "cut":
            # A listening socket that is shut down keeps its port, and whoever dials is refused.
            self._accepting.clear()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            for pair in self._pairs:
                pair.cancel()
        else:
            self._listener.listen(BACKLOG)
            self._accepting.set()
        if flow == "open":
            self._flowing.set()
        else:
            self._flowing.clear()

    async def serve(self) -> None:
        """Accepts for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._accepting.wait()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError:  # cut while it waited
                await asyncio.sleep(0)
                continue
            pair = asyncio.create_task(self._pair(client))
            self._pairs.add(pair)
            pair.add_done_callback(self._pairs.discard)

    async def _pair(self, client: socket.socket) -> None:
        """One connection from end to end; whatever goes wrong on one side is a reset on the other."""
        loop = asyncio.get_running_loop()
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        whole = False
        try:
            for side in (client, server):
                side.setblocking(False)
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._flowing.wait()
            await loop.sock_connect(server, _address(self.setting.target))
            async with asyncio.TaskGroup() as ways:
                for source, sink in ((client, server), (server, client)):
                    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_CHUNKS)
                    ways.create_task(self._take(source, way))
                    ways.create_task(self._give(sink, way))
            whole = True
        except* OSError:
            pass
        finally:
            for side in (client, server):
                if not whole:
                    with contextlib.suppress(OSError):
                        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                side.close()

    async def _take(self, source: socket.socket, way: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(source, CHUNK_BYTES)
            await way.put((loop.time(), data))
            if not data:
                return

    async def _give(self, sink: socket.socket, way: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            came_s, data = await way.get()
            while (wait_s := came_s + self.setting.delay_ms / 1000 - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if not data:
                await self._flowing.wait()
                sink.shutdown(socket.SHUT_WR)
                return
            while data:
                await self._flowing.wait()
                rate = self.setting.bytes_per_s
                step = len(data) if rate is None else max(1, int(rate * THROTTLE_STEP_S))
                if rate is not None:
                    await asyncio.sleep(min(step, len(data)) / rate)
                    await self._flowing.wait()
                await loop.sock_sendall(sink, data[:step])
                data = data[step:]


class _Relay:
    """Every link of a federation, and the socket they are ruled over."""

    def __init__(self, links: dict[str, Any]) -> None:
        self._links = {name: _Link(told["listen"], Setting(told["target"])) for name, told in links.items()}

    def told(self) -> dict[str, Any]:
        return {name: link.told() for name, link in self._links.items()}

    def obey(self, command: Any) -> dict[str, Any]:
        """One command; all of it or, when any part is wrong, nothing of it."""
        wanted = command.get("set", {}) if isinstance(command, dict) else None
        if not isinstance(wanted, dict) or command.keys() - {"set"}:
            raise ValueError('a command is {} or {"set": {LINK: {...}}}')
        new = {}
        for name, fields in wanted.items():
            if name not in self._links:
                raise ValueError(f"there is no link {name}; allowed: {', '.join(self._links)}")
            new[name] = self._links[name].setting.changed(**fields)
        for name, setting in new.items():
            self._links[name].apply(setting)
        return self.told()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    told: dict[str, Any] = {"links": self.obey(json.loads(line))}
                except (ValueError, TypeError) as error:
                    told = {"fault": str(error)}
                writer.write(json.dumps(told).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass
        finally:
            writer.close()

    async def run(self, control: Path) -> None:
        """Relays until the process is told to end."""
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        serving = [asyncio.create_task(link.serve()) for link in self._links.values()]
        async with await asyncio.start_unix_server(self._answer, control):
            print(json.dumps({name: link.port for name, link in self._links.items()}), flush=True)
            await ended.wait()
        for task in serving:
            task.cancel()


@dataclass(frozen=True, slots=True)
class Relay:
    """A running relay, as those see it who rule it."""

    control: Path

    def set(self, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Changes links, all at once, and tells the state of every link.

        Raises:
            OSError: when no relay runs there.
            ValueError: when it refuses the change.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(5.0)
            channel.connect(str(self.control))
            channel.sendall(json.dumps({"set": changes}).encode() + b"\n")
            with channel.makefile("rb") as lines:
                told = json.loads(lines.readline() or b"{}")
        if "links" not in told:
            raise ValueError(str(told.get("fault", "the relay said nothing")))
        return dict(told["links"])

    def links(self) -> dict[str, Any]:
        """The state of every link."""
        return self.set({})


def main() -> None:
    """The process."""
    links = json.load(sys.stdin)

    async def run() -> None:
        await _Relay(links).run(Path(sys.argv[1]) / "relay.sock")

    asyncio.run(run())


if __name__ == "__main__":
    main()
