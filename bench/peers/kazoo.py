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
from kazoo.recipe.queue import Queue

pools = {}
pair = []
waiter = {}


def connect(servers, timeout):
    client = KazooClient(hosts=servers, timeout=timeout)
    client.start(timeout=60)
    return client


def client(servers, i):
    """The i-th client of those servers is connected to the i-th of them."""
    pool = pools.setdefault(servers, [])
    addresses = servers.split(",")
    while len(pool) <= i:
        pool.append(connect(addresses[len(pool) % len(addresses)], 20))
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


def hold(holder, heir, path, millis):
    pair[:] = [connect(holder, int(millis) / 1000), connect(heir, int(millis) / 1000)]
    Lock(pair[0], path).acquire()
    lock = Lock(pair[1], path)
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
    while len(pair[1].get_children(path)) < 2:
        time.sleep(0.005)
    time.sleep(0.2)  # it waits in the queue
    return []


def granted():
    waiter["granted"].wait()
    if waiter["failed"]:
        raise waiter["failed"]
    return []


def drop():
    for c in pair:
        threading.Thread(target=c.stop, daemon=True).start()  # without contact this is slow
    return []


def queue(servers, path, threads, millis, size):
    data = b"." * int(size)

    def move(q):
        q.put(data)
        while q.get() is None:  # another thread was faster
            pass

    # One object is not safe for several threads.
    queues = [Queue(client(servers, 0), path) for _ in range(int(threads))]
    move(queues[0])
    return hammer([lambda q=q: move(q) for q in queues], millis)


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


COMMANDS = {f.__name__: f for f in (cycles, contend, trips, hold, granted, drop, queue, barrier, cache, heap, seen, uncache)}


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
