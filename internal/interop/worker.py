"""A worker process with kazoo's locks.

Arguments: name, servers, session timeout in seconds. The protocol is in
peer_test.go. Kinds of locks: kazoo, which is kazoo's Lock told of Curator's
names; curator, the same with nodes named in a way that Curator finds in line;
election and latch, which are the same two for kazoo's Election; untold, which is
kazoo's Election as it is.
"""
import os
import socket
import sys
import threading

from kazoo.client import KazooClient
from kazoo.recipe.election import Election
from kazoo.recipe.lock import Lock


class NamedAsCurator(Lock):
    """Names its nodes <uuid>-lock-<number>, and still sees kazoo's own."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-", "__lock__"]


class NamedAsLatch(Lock):
    """The same for elections."""

    _NODE_NAME = "-latch-"
    _EXCLUDE_NAMES = ["-latch-", "__lock__"]


class Term:
    """Leadership, while Election runs a function."""

    def __init__(self):
        self.resigned = threading.Event()
        self.over = threading.Event()

    def release(self):
        self.resigned.set()
        self.over.wait()


class Worker:
    def __init__(self, name, servers, timeout):
        self.name = name
        self.saying = threading.Lock()
        self.held = {}
        self.stopped = threading.Event()
        self.client = KazooClient(hosts=servers, timeout=timeout)
        self.client.add_listener(lambda state: self.say("state", state.lower()))
        self.client.start(timeout=60)

    def say(self, *words):
        with self.saying:
            print(*words, flush=True)

    def lock(self, kind, path):
        if kind == "kazoo":
            return Lock(self.client, path, self.name, extra_lock_patterns=("-lock-",))
        if kind == "curator":
            return NamedAsCurator(self.client, path, self.name)
        if kind == "election":
            return Lock(self.client, path, self.name, extra_lock_patterns=("-latch-",))
        if kind == "latch":
            return NamedAsLatch(self.client, path, self.name)
        raise ValueError(kind)

    def node(self, lock):
        path = lock.path + "/" + lock.node
        return path, self.client.exists(path).czxid

    def take(self, ident, lock, wait):
        if lock.acquire(blocking=wait):
            self.held[ident] = lock
            self.say("granted", ident, *self.node(lock))
        else:
            self.say("busy", ident)

    def campaign(self, ident, kind, path):
        election = Election(self.client, path, self.name)
        if kind != "untold":
            # Election makes its own lock, and has no argument for patterns.
            election.lock = self.lock(kind, path)
        term = Term()

        def lead():
            self.held[ident] = term
            self.say("granted", ident, *self.node(election.lock))
            term.resigned.wait()

        election.run(lead)
        term.over.set()

    def loop(self, kind, path, room):
        """Acquires and releases the lock until told to stop, and visits the room while it holds."""
        host, port = room.split(":")
        lock = self.lock(kind, path)
        turns = 0
        with socket.create_connection((host, int(port))) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = sock.makefile("r")

            def ask(*words):
                sock.sendall((" ".join(map(str, words)) + "\n").encode())
                if not answers.readline():
                    raise EOFError("the room is closed")

            while not self.stopped.is_set():
                lock.acquire()
                ask("enter", self.name, lock.path + "/" + lock.node)
                ask("leave", self.name, self.node(lock)[1])
                lock.release()
                turns += 1
        self.say("looped", turns)

    def start(self, what, f, *args):
        def run():
            try:
                f(*args)
            except Exception as e:
                self.say("failed", what + ":", repr(e))

        threading.Thread(target=run, daemon=True).start()

    def obey(self, verb, *args):
        if verb in ("lock", "try"):
            ident, kind, path = args
            self.say("want", ident)
            if kind in ("election", "latch", "untold"):
                self.start(ident, self.campaign, ident, kind, path)
                return
            self.start(ident, self.take, ident, self.lock(kind, path), verb == "lock")
        elif verb == "release":
            self.held.pop(args[0]).release()
            self.say("released", args[0])
        elif verb == "list":
            self.say("listed", *self.lock(*args).contenders())
        elif verb == "loop":
            self.stopped.clear()
            self.start("loop", self.loop, *args)
        elif verb == "stop":
            self.stopped.set()
        else:
            raise ValueError(verb)


def main():
    worker = Worker(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    worker.say("opened")
    for line in sys.stdin:
        try:
            worker.obey(*line.split())
        except Exception as e:
            worker.say("failed", line.strip() + ":", repr(e))
    worker.client.stop()
    os._exit(0)  # even if threads still wait


main()
