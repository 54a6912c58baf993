import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.locks.StandardLockInternalsDriver;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.data.Stat;

/**
 * A worker process with Curator's locks. Arguments: name, servers, session timeout in milliseconds.
 * The protocol is in peer_test.go. Kinds of locks: mutex; number, which is a mutex that orders by
 * the number at the end of a name, whatever precedes it; revocable, a mutex that listens to
 * requests; read and write; latch, which is a LeaderLatch.
 */
public final class Worker {
    private final byte[] name;
    private final CuratorFramework client;
    private final Map<String, Handle> handles = new ConcurrentHashMap<>();
    private volatile boolean stopped;

    private Worker(String[] args) throws InterruptedException {
        name = args[0].getBytes(StandardCharsets.UTF_8);
        client = CuratorFrameworkFactory.builder()
                .connectString(args[1])
                .sessionTimeoutMs(Integer.parseInt(args[2]))
                .connectionTimeoutMs(Integer.parseInt(args[2]))
                .retryPolicy(new ExponentialBackoffRetry(50, 8))
                .ensembleTracker(false)
                .build();
        client.getConnectionStateListenable().addListener((c, state) -> say("state", state.name().toLowerCase()));
        client.start();
        client.blockUntilConnected();
    }

    private static synchronized void say(String... words) {
        System.out.println(String.join(" ", words));
    }

    private static void fail(String what, Throwable cause) {
        say("failed", what + ":", String.valueOf(cause).replace('\n', ' '));
    }

    /** A lock that can return its node. */
    private interface Lock {
        void acquire() throws Exception;

        boolean acquire(long time, TimeUnit unit) throws Exception;

        void release() throws Exception;

        String getLockPath();
    }

    private class Mutex extends InterProcessMutex implements Lock {
        Mutex(String path, StandardLockInternalsDriver driver) {
            super(client, path, driver);
        }

        @Override
        protected byte[] getLockNodeBytes() {
            return name;
        }

        @Override
        public String getLockPath() {
            return super.getLockPath();
        }
    }

    private class Writer extends InterProcessReadWriteLock.WriteLock implements Lock {
        Writer(String path) {
            super(client, path, name);
        }

        @Override
        public String getLockPath() {
            return super.getLockPath();
        }
    }

    private class Reader extends InterProcessReadWriteLock.ReadLock implements Lock {
        Reader(String path) {
            super(client, path, name, new Writer(path));
        }

        @Override
        public String getLockPath() {
            return super.getLockPath();
        }
    }

    /** A candidate. A LeaderLatch can be used once. */
    private class Latch implements Lock {
        private final String path;
        private LeaderLatch latch;

        Latch(String path) {
            this.path = path;
        }

        @Override
        public void acquire() throws Exception {
            latch = new LeaderLatch(client, path, new String(name, StandardCharsets.UTF_8));
            latch.start();
            latch.await();
        }

        @Override
        public boolean acquire(long time, TimeUnit unit) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void release() throws Exception {
            latch.close();
        }

        @Override
        public String getLockPath() {
            return latch.getOurPath();
        }
    }

    /** Orders all contenders by the ten characters at the end of their names. */
    private static final class ByNumber extends StandardLockInternalsDriver {
        @Override
        public String fixForSorting(String node, String lockName) {
            return node.substring(Math.max(0, node.length() - 10));
        }
    }

    private Lock lock(String id, String kind, String path) {
        switch (kind) {
            case "mutex":
                return new Mutex(path, new StandardLockInternalsDriver());
            case "number":
                return new Mutex(path, new ByNumber());
            case "revocable": {
                Mutex m = new Mutex(path, new StandardLockInternalsDriver());
                m.makeRevocable(held -> say("revoked", id));
                return m;
            }
            case "read":
                return new Reader(path);
            case "write":
                return new Writer(path);
            case "latch":
                return new Latch(path);
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** One acquisition. Curator's locks belong to the thread that acquired them. */
    private final class Handle implements Runnable {
        final String id;
        final Lock lock;
        final boolean wait;
        final CountDownLatch released = new CountDownLatch(1);

        Handle(String id, Lock lock, boolean wait) {
            this.id = id;
            this.lock = lock;
            this.wait = wait;
        }

        @Override
        public void run() {
            try {
                if (wait) {
                    lock.acquire();
                } else if (!lock.acquire(0, TimeUnit.MILLISECONDS)) {
                    say("busy", id);
                    return;
                }
                say("granted", id, lock.getLockPath(), token(lock));
                released.await();
                lock.release();
                say("released", id);
            } catch (Exception e) {
                fail(id, e);
            }
        }
    }

    private String token(Lock lock) throws Exception {
        Stat stat = client.checkExists().forPath(lock.getLockPath());
        if (stat == null) {
            throw new IllegalStateException("no node " + lock.getLockPath());
        }
        return Long.toString(stat.getCzxid());
    }

    /** Acquires and releases the lock until it is told to stop, and visits the room while it holds. */
    private void loop(String kind, String path, String room) {
        int turns = 0;
        String[] address = room.split(":");
        try (Socket socket = new Socket(address[0], Integer.parseInt(address[1]))) {
            socket.setTcpNoDelay(true);
            BufferedReader answers = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            PrintStream out = new PrintStream(socket.getOutputStream(), true);
            String me = new String(name, StandardCharsets.UTF_8);
            Lock lock = lock("loop", kind, path);
            for (; !stopped; turns++) {
                lock.acquire();
                ask(out, answers, "enter " + me + " " + lock.getLockPath());
                ask(out, answers, "leave " + me + " " + token(lock));
                lock.release();
            }
            say("looped", Integer.toString(turns));
        } catch (Exception e) {
            fail("loop", e);
        }
    }

    /** Makes threads acquire and release one lock for a time, and counts their turns. */
    private void spin(String path, int threads, long millis) throws Exception {
        Lock lock = lock("spin", "mutex", path);
        AtomicLong turns = new AtomicLong();
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        Thread[] all = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            all[i] = new Thread(() -> {
                try {
                    while (System.nanoTime() < end) {
                        lock.acquire();
                        turns.incrementAndGet();
                        lock.release();
                    }
                } catch (Exception e) {
                    fail("spin", e);
                }
            });
            all[i].start();
        }
        for (Thread t : all) {
            t.join();
        }
        say("spun", Long.toString(turns.get()));
    }

    /** Makes threads move items through one queue, each one by one, and counts them. */
    private void queue(String path, int threads, int items, int size) throws Exception {
        SimpleDistributedQueue queue = new SimpleDistributedQueue(client, path);
        byte[] data = new byte[size];
        AtomicLong taken = new AtomicLong();
        Thread[] all = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            int n = items / threads + (i < items % threads ? 1 : 0);
            all[i] = new Thread(() -> {
                try {
                    for (int k = 0; k < n; k++) {
                        queue.offer(data);
                        if (queue.take().length == size) {
                            taken.incrementAndGet();
                        }
                    }
                } catch (Exception e) {
                    fail("queue", e);
                }
            });
            all[i].start();
        }
        for (Thread t : all) {
            t.join();
        }
        say("queued", Long.toString(taken.get()));
    }

    private static void ask(PrintStream out, BufferedReader answers, String line) throws IOException {
        out.print(line + "\n");
        out.flush();
        if (answers.readLine() == null) {
            throw new IOException("the room is closed");
        }
    }

    private void list(String kind, String path) throws Exception {
        StringBuilder data = new StringBuilder();
        if (kind.equals("latch")) {
            for (Participant p : new LeaderLatch(client, path).getParticipants()) {
                data.append(' ').append(p.getId());
            }
            say("listed" + data);
            return;
        }
        for (String node : new Mutex(path, new StandardLockInternalsDriver()).getParticipantNodes()) {
            data.append(' ').append(new String(client.getData().forPath(node), StandardCharsets.UTF_8));
        }
        say("listed" + data);
    }

    private void obey(String[] c) throws Exception {
        switch (c[0]) {
            case "lock":
            case "try": {
                Handle h = new Handle(c[1], lock(c[1], c[2], c[3]), c[0].equals("lock"));
                handles.put(c[1], h);
                say("want", c[1]);
                new Thread(h).start();
                break;
            }
            case "release":
                handles.remove(c[1]).released.countDown();
                break;
            case "list":
                list(c[1], c[2]);
                break;
            case "revoke":
                Revoker.attemptRevoke(client, c[1]);
                say("asked");
                break;
            case "loop":
                stopped = false;
                new Thread(() -> loop(c[1], c[2], c[3])).start();
                break;
            case "spin":
                spin(c[1], Integer.parseInt(c[2]), Long.parseLong(c[3]));
                break;
            case "queue":
                queue(c[1], Integer.parseInt(c[2]), Integer.parseInt(c[3]), Integer.parseInt(c[4]));
                break;
            case "stop":
                stopped = true;
                break;
            default:
                throw new IllegalArgumentException(c[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        Worker w = new Worker(args);
        say("opened");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            try {
                w.obey(line.split(" "));
            } catch (Exception e) {
                fail(line, e);
            }
        }
        w.client.close();
        System.exit(0); // even if threads still wait
    }
}
