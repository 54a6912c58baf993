"""Runs kazoo's recipes for the benchmarks.

It executes one command on each line of its standard input and answers each with one
line: ok and figures, or failed and the reason. The commands are in foreign.go. Times are
in nanoseconds.
"""
import gc
import math
import os
import sys
import threading
import time
import tracemalloc

from kazoo.client import KazooClient
from kazoo.recipe.barrier import DoubleBarrier
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.recipe.lock import Lock
from kazoo.recipe.partitioner import SetPartitioner
from kazoo.recipe.queue import LockingQueue, Queue

pools = {}
opened = []  # clients of hold and heir
waiter = {}


def connect(servers, timeout, **options):
    client = KazooClient(hosts=servers, timeout=timeout, **options)
    client.start(timeout=60)
    return client


def client(servers, i, **options):
    """The i-th client of those servers is connected to the i-th of them."""
    pool = pools.setdefault((servers, repr(options)), [])
    addresses = servers.split(",")
    while len(pool) <= i:
        pool.append(connect(addresses[len(pool) % len(addresses)], 20, **options))
    return pool[i]


def percentiles(times):
    times = sorted(times)
    n = len(times)
    return [times[max(0, math.ceil(p * n) - 1)] if n else 0 for p in (0.5, 0.9, 0.99, 1)]


def in_threads(functions):
    """Runs each in a thread and raises an error that one of them raised."""
    failed = []

    def run(f):
        try:
            f()
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(f,), daemon=True) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]


def hammer(steps, millis):
    """Makes each thread repeat its step for a time."""
    times = []
    began = time.perf_counter_ns()
    end = began + int(millis) * 1_000_000

    def repeat(step):
        mine = []
        now = time.perf_counter_ns()
        while not mine or now < end:
            step()
            then, now = now, time.perf_counter_ns()
            mine.append(now - then)
        times.extend(mine)

    in_threads([lambda s=s: repeat(s) for s in steps])
    return [len(times), time.perf_counter_ns() - began] + percentiles(times)


def cycle(lock):
    lock.acquire()
    lock.release()


def cycles(servers, path, callers, millis):
    locks = [Lock(client(servers, 0), "%s-%d" % (path, i)) for i in range(int(callers))]
    for lock in locks:
        cycle(lock)
    return hammer([lambda k=k: cycle(k) for k in locks], millis)


def contend(servers, path, callers, which, millis):
    callers, millis = int(callers), int(millis)
    locks = [Lock(client(servers, 0 if which == "one" else i), path) for i in range(callers)]
    for lock in locks:
        cycle(lock)
    hand_overs = []
    given = [0, -1]
    turns = [0, 0]  # and the begin of the latest

    def turn(i):
        locks[i].acquire()
        now = time.perf_counter_ns()
        turns[:] = [turns[0] + 1, now]
        if given[0] and given[1] != i:
            hand_overs.append(now - given[0])
        given[:] = [time.perf_counter_ns(), i]
        locks[i].release()

    began = time.perf_counter_ns()
    hammer([lambda i=i: turn(i) for i in range(callers)], millis)
    return [turns[0], turns[1] - began] + percentiles(hand_overs)


def trips(servers, path, n):
    lock = Lock(client(servers, 0), path)
    for _ in range(int(n)):
        cycle(lock)
    return []


def share(servers, path, locks, every, millis):
    """Cycles of two clients, one after the other: see mix in measure_shared.go."""
    locks, every = int(locks), int(every)
    first = [Lock(client(servers, 0), "%s-%d" % (path, i)) for i in range(locks)]
    second = Lock(client(servers, 1), path + "-0")
    for lock in first + [second]:
        cycle(lock)
    next = [0]

    def one():
        k, next[0] = next[0], next[0] + 1
        other = k % locks == 0 and k // locks % every == every - 1
        cycle(second if other else first[k % locks])

    return hammer([one], millis)


def hold(servers, path, millis):
    opened.append(connect(servers, int(millis) / 1000))
    Lock(opened[-1], path).acquire()
    return []


def heir(servers, path, millis):
    c = connect(servers, int(millis) / 1000)
    opened.append(c)
    lock = Lock(c, path)
    waiter.clear()
    waiter["granted"] = threading.Event()
    waiter["failed"] = None

    def wait():
        try:
            lock.acquire()
            waiter["granted"].set()
            lock.release()
        except Exception as e:
            waiter["failed"] = e
            waiter["granted"].set()

    threading.Thread(target=wait, daemon=True).start()
    while len(c.get_children(path)) < 2:
        time.sleep(0.005)
    time.sleep(0.2)  # it waits in the queue
    return []


def granted():
    waiter["granted"].wait()
    if waiter["failed"]:
        raise waiter["failed"]
    return []


def drop():
    while opened:
        threading.Thread(target=opened.pop().stop, daemon=True).start()  # without contact this is slow
    return []


class Ledger:
    """The items that were put, and which of them were taken. An item is its number, with zeros up to its size."""

    def __init__(self, size):
        self.size = size
        self.taken = []  # by number
        self.wrong = None
        self.lock = threading.Lock()

    def put(self):
        with self.lock:
            self.taken.append(False)
            return b"%0*d" % (self.size, len(self.taken) - 1)

    def take(self, item):
        with self.lock:
            k = int(item)
            if k >= len(self.taken):
                self.wrong = "item %d was taken and never put" % k
                return k
            if self.taken[k]:
                self.wrong = "item %d was taken twice" % k
            self.taken[k] = True
            return k

    def check(self, left):
        if self.wrong:
            raise ValueError(self.wrong)
        if False in self.taken:
            raise ValueError("item %d was put and not taken" % self.taken.index(False))
        if left:
            raise ValueError("%d items are in the queue, and all %d were taken" % (left, len(self.taken)))


def get_from_queue(q):
    while True:
        item = q.get()
        if item is not None:  # otherwise another consumer was faster
            return item


def get_from_locking_queue(q):
    item = q.get()
    if not q.consume():
        raise ValueError("an item was not consumed")
    return item


moved = {}

KINDS = {"plain": (get_from_queue, Queue), "locking": (get_from_locking_queue, LockingQueue)}

# Consumers that lose a race try again soon, which is faster here than the default of 100 ms.
SOON = {"max_tries": -1, "delay": 0.001, "max_delay": 0.01}


def queue(kind, servers, path, n, batch, size):
    ledger, batch = Ledger(int(size)), int(batch)

    def turn(q):
        items = [ledger.put() for _ in range(batch)]
        if batch > 1 and kind == "locking":
            q.put_all(items)
        else:
            for item in items:
                q.put(item)
        for _ in range(batch):
            ledger.take(get(q))

    get, recipe = KINDS[kind]
    queues = [recipe(client(servers, i, command_retry=SOON), path) for i in range(int(n))]
    for q in queues:
        turn(q)
    moved.update(queues=queues, turn=turn, ledger=ledger)
    return []


def turns(millis):
    turn, queues = moved["turn"], moved["queues"]
    figures = hammer([lambda q=q: turn(q) for q in queues], millis)
    check(queues[0], moved["ledger"])
    return figures


def check(q, ledger):
    q.client.sync(q.path)  # its server may not know yet what another one's clients took last
    ledger.check(len(q))


def fill(kind, servers, path, n, putters, count, size):
    n, putters, ledger = int(n), int(putters), Ledger(int(size))
    get, recipe = KINDS[kind]
    queues = [recipe(client(servers, i, command_retry=SOON), path) for i in range(n + max(putters, 1))]
    items = [ledger.put() for _ in range(int(count))]
    if putters == 0:
        for item in items:
            queues[n].put(item)
    moved.update(queues=queues[:n], putters=queues[n:n + putters], get=get, items=items, ledger=ledger)
    return []


def drain():
    queues, putters, items, ledger = (moved[k] for k in ("queues", "putters", "items", "ledger"))
    fed = [threading.Semaphore(0) for _ in putters]
    rest = iter(items)  # one for each item that no consumer waits for yet
    lock = threading.Lock()

    def more():
        with lock:
            return next(rest, None) is not None

    def consume(q):
        while more():
            k = ledger.take(moved["get"](q))
            if fed:
                fed[k % len(fed)].release()

    def produce(i):
        for item in items[i::len(putters)]:
            putters[i].put(item)
            fed[i].acquire()

    began = time.perf_counter_ns()
    in_threads([lambda q=q: consume(q) for q in queues] + [lambda i=i: produce(i) for i in range(len(putters))])
    took = time.perf_counter_ns() - began
    check(queues[0], ledger)
    return [len(items), took]


def unqueue():
    moved.clear()
    return []


def barrier(servers, path, n, rounds):
    n, rounds = int(n), int(rounds)

    def member(i):
        for k in range(rounds):
            b = DoubleBarrier(client(servers, 0), "%s-%d" % (path, k), n, "member-%d" % i)
            b.enter()
            b.leave()

    client(servers, 0)
    began = time.perf_counter_ns()
    in_threads([lambda i=i: member(i) for i in range(n)])
    return [time.perf_counter_ns() - began]


class Crew:
    """Members of a SetPartitioner, each with a session of its own."""

    def __init__(self, servers, path, shards, members, boundary):
        addresses = servers.split(",")
        self.clients = [connect(addresses[i % len(addresses)], 20) for i in range(members)]
        self.path, self.shards, self.boundary = path, ["%05d" % i for i in range(shards)], boundary / 1000
        self.changed = threading.Condition()
        self.have = {}  # shards of each member, None while it has not acquired them
        self.moves = 0
        self.failed = None
        self.ended = [threading.Event() for _ in self.clients]
        self.woken = [threading.Event() for _ in self.clients]

    def member(self, i):
        changed = self.woken[i]
        p = SetPartitioner(self.clients[i], self.path, self.shards, identifier="member-%03d" % i,
                           time_boundary=self.boundary, state_change_event=changed)
        was = None
        while not self.ended[i].is_set():
            changed.wait()
            changed.clear()
            state = p.state_id
            if p.release:
                self.note(i, None)
                p.release_set()
                changed.set()
            elif p.acquired and state != was:
                was = state
                self.note(i, len(list(p)))
            elif p.failed and not self.ended[i].is_set():
                raise RuntimeError("the partitioner failed")
        self.note(i, None)
        p.finish()

    def note(self, i, have):
        with self.changed:
            self.have[i] = have
            self.moves += have or 0
            self.changed.notify_all()

    def start(self, i):
        def run():
            try:
                self.member(i)
            except Exception as e:
                with self.changed:
                    if not self.ended[i].is_set():
                        self.failed = e
                        self.changed.notify_all()

        threading.Thread(target=run, daemon=True).start()

    def end(self, i):
        self.ended[i].set()
        self.woken[i].set()

    def settled(self, members, limit):
        """Waits until these members have all shards."""
        def done():
            if self.failed:
                raise self.failed
            have = [self.have.get(i) for i in members]
            return None not in have and sum(have) == len(self.shards)

        with self.changed:
            return self.changed.wait_for(done, limit / 1000)


crew = []


def divide(servers, path, shards, members, boundary):
    crew[:] = [Crew(servers, path, int(shards), int(members), int(boundary))]
    return []


def change(members, limit, act):
    c = crew[0]
    c.moves = 0
    began = time.perf_counter_ns()
    act(c)
    if not c.settled(members(c), int(limit)):
        return []
    return [time.perf_counter_ns() - began, c.moves]


def start(limit):
    return change(lambda c: range(len(c.clients) - 1), limit, lambda c: [c.start(i) for i in range(len(c.clients) - 1)])


def join(limit):
    return change(lambda c: range(len(c.clients)), limit, lambda c: c.start(len(c.clients) - 1))


def leave(limit):
    return change(lambda c: range(len(c.clients) - 1), limit, lambda c: c.end(len(c.clients) - 1))


def undivide():
    """Ends the sessions, and the nodes with them: to release all locks one by one takes long."""
    for c in crew:
        for i in range(len(c.clients)):
            c.end(i)

        def end(client):
            client.stop()
            client.close()

        in_threads([lambda k=k: end(k) for k in c.clients])
    crew.clear()
    return []


cached = {}


def cache(servers, path, kind):
    """A cache with a session of its own. Tracing its memory makes it slow."""
    synced = threading.Event()
    cached.update(client=connect(servers.split(",")[0], 20), nodes=0, changes=0, changed=threading.Condition())

    def listener(e):
        if e.event_type == TreeEvent.INITIALIZED:
            synced.set()
        elif e.event_type == TreeEvent.NODE_ADDED:
            cached["nodes"] += 1
        elif e.event_type == TreeEvent.NODE_UPDATED:
            with cached["changed"]:
                cached["changes"] += 1
                cached["changed"].notify_all()

    if kind == "traced":
        tracemalloc.start()
    began = time.perf_counter_ns()
    cached["tree"] = TreeCache(cached["client"], path)
    cached["tree"].listen(listener)
    cached["tree"].start()
    synced.wait()
    return [time.perf_counter_ns() - began, cached["nodes"]]


def heap():
    """Nothing is known, and 0 returned, while no memory is traced."""
    gc.collect()
    return [tracemalloc.get_traced_memory()[0]]


def seen(n):
    with cached["changed"]:
        cached["changed"].wait_for(lambda: cached["changes"] >= int(n))
    return []


def uncache():
    tracemalloc.stop()
    cached["client"].stop()  # its watches end with the session
    cached["client"].close()
    cached["tree"].close()
    cached.clear()
    return []


COMMANDS = {f.__name__: f for f in (cycles, contend, trips, share, hold, heir, granted, drop, queue, turns, fill, drain, unqueue, divide, start, join, leave, undivide, barrier, cache, heap, seen, uncache)}


def main():
    print("ok", flush=True)
    for line in sys.stdin:
        verb, *args = line.split()
        try:
            answer = " ".join(["ok"] + [str(x) for x in COMMANDS[verb](*args)])
        except Exception as e:
            answer = "failed " + repr(e).replace("\n", " ")
        print(answer, flush=True)
    os._exit(0)  # sessions end by themselves, or with their servers


main()
