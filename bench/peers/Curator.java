import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.cache.TreeCacheEvent;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;

/**
 * Runs Curator's recipes for the benchmarks. It executes one command on each line of its standard input
 * and answers each with one line: ok and figures, or failed and the reason. The commands are in foreign.go.
 * Times are in nanoseconds.
 */
public final class Curator {
    private final Map<String, List<CuratorFramework>> pools = new HashMap<>();

    /** A step that a thread repeats, and that can fail. */
    private interface Step {
        void run() throws Exception;
    }

    private static CuratorFramework open(String servers, int timeout) throws InterruptedException {
        CuratorFramework c = CuratorFrameworkFactory.builder()
                .connectString(servers)
                .sessionTimeoutMs(timeout)
                .connectionTimeoutMs(30_000)
                .retryPolicy(new RetryNTimes(100, 100))
                .ensembleTracker(false)
                .build();
        c.start();
        c.blockUntilConnected();
        return c;
    }

    /** The i-th client of those servers is connected to the i-th of them. */
    private CuratorFramework client(String servers, int i) throws InterruptedException {
        List<CuratorFramework> pool = pools.computeIfAbsent(servers, s -> new ArrayList<>());
        String[] all = servers.split(",");
        while (pool.size() <= i) {
            pool.add(open(all[pool.size() % all.length], 20_000));
        }
        return pool.get(i);
    }

    /** Makes every thread repeat its step for a time. Returns the number, the time and percentiles. */
    private static String hammer(List<Step> steps, long millis) throws Exception {
        int n = steps.size();
        long[][] times = new long[n][];
        Exception[] failed = new Exception[n];
        Thread[] threads = new Thread[n];
        long began = System.nanoTime();
        long end = began + TimeUnit.MILLISECONDS.toNanos(millis);
        for (int i = 0; i < n; i++) {
            int k = i;
            threads[i] = new Thread(() -> {
                long[] mine = new long[1024];
                int count = 0;
                try {
                    long now = System.nanoTime();
                    do {
                        steps.get(k).run();
                        long then = now;
                        now = System.nanoTime();
                        if (count == mine.length) {
                            mine = Arrays.copyOf(mine, 2 * count);
                        }
                        mine[count++] = now - then;
                    } while (now < end);
                } catch (Exception e) {
                    failed[k] = e;
                }
                times[k] = Arrays.copyOf(mine, count);
            });
            threads[i].start();
        }
        for (Thread t : threads) {
            t.join();
        }
        long took = System.nanoTime() - began;
        for (Exception e : failed) {
            if (e != null) {
                throw e;
            }
        }
        long[] all = Arrays.stream(times).flatMapToLong(Arrays::stream).sorted().toArray();
        return all.length + " " + took + percentiles(all, all.length);
    }

    private static String percentiles(long[] sorted, int n) {
        StringBuilder b = new StringBuilder();
        for (double p : new double[] {0.5, 0.9, 0.99, 1}) {
            b.append(' ').append(n == 0 ? 0 : sorted[Math.max(0, (int) Math.ceil(p * n) - 1)]);
        }
        return b.toString();
    }

    private static void cycle(InterProcessMutex m) throws Exception {
        m.acquire();
        m.release();
    }

    private String cycles(String servers, String path, int callers, long millis) throws Exception {
        List<Step> steps = new ArrayList<>();
        for (int i = 0; i < callers; i++) {
            InterProcessMutex m = new InterProcessMutex(client(servers, 0), path + "-" + i);
            cycle(m);
            steps.add(() -> cycle(m));
        }
        return hammer(steps, millis);
    }

    /** One lock, and its state. */
    private static final class Contended {
        long given;
        int giver;
        int turns;
        long latest; // grant
        long[] handOvers = new long[1024];
        int count;
    }

    private String contend(String servers, String path, int callers, boolean oneClient, long millis) throws Exception {
        Contended c = new Contended();
        List<InterProcessMutex> locks = new ArrayList<>();
        for (int i = 0; i < callers; i++) {
            InterProcessMutex m = new InterProcessMutex(client(servers, oneClient ? 0 : i), path);
            cycle(m);
            locks.add(m);
        }
        List<Step> steps = new ArrayList<>();
        for (int i = 0; i < callers; i++) {
            int k = i;
            InterProcessMutex m = locks.get(i);
            steps.add(() -> {
                m.acquire();
                synchronized (c) {
                    long now = System.nanoTime();
                    c.turns++;
                    c.latest = now;
                    if (c.given != 0 && c.giver != k) {
                        if (c.count == c.handOvers.length) {
                            c.handOvers = Arrays.copyOf(c.handOvers, 2 * c.count);
                        }
                        c.handOvers[c.count++] = now - c.given;
                    }
                    c.given = System.nanoTime();
                    c.giver = k;
                }
                m.release();
            });
        }
        long began = System.nanoTime();
        hammer(steps, millis);
        Arrays.sort(c.handOvers, 0, c.count);
        return c.turns + " " + (c.latest - began) + percentiles(c.handOvers, c.count);
    }

    private String trips(String servers, String path, int n) throws Exception {
        InterProcessMutex m = new InterProcessMutex(client(servers, 0), path);
        for (int i = 0; i < n; i++) {
            cycle(m);
        }
        return "";
    }

    /** Cycles of two clients, one after the other: see mix in measure_shared.go. */
    private String share(String servers, String path, int locks, int every, long millis) throws Exception {
        List<InterProcessMutex> first = new ArrayList<>();
        for (int i = 0; i < locks; i++) {
            first.add(new InterProcessMutex(client(servers, 0), path + "-" + i));
            cycle(first.get(i));
        }
        InterProcessMutex second = new InterProcessMutex(client(servers, 1), path + "-0");
        cycle(second);
        int[] next = {0};
        return hammer(List.<Step>of(() -> {
            int k = next[0]++;
            boolean other = k % locks == 0 && k / locks % every == every - 1;
            cycle(other ? second : first.get(k % locks));
        }), millis);
    }

    private String together(String servers, String path, int n, long millis) throws Exception {
        List<String> paths = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            paths.add(path + "-" + i);
        }
        InterProcessMultiLock all = new InterProcessMultiLock(client(servers, 0), paths);
        return hammer(List.<Step>of(() -> {
            all.acquire();
            all.release();
        }), millis);
    }

    private final List<CuratorFramework> opened = new ArrayList<>(); // by hold and heir
    private CountDownLatch granted;
    private volatile Exception refused;

    private String hold(String servers, String path, int timeout) throws Exception {
        CuratorFramework c = open(servers, timeout);
        opened.add(c);
        new InterProcessMutex(c, path).acquire();
        return "";
    }

    private String heir(String servers, String path, int timeout) throws Exception {
        CuratorFramework c = open(servers, timeout);
        opened.add(c);
        CountDownLatch got = new CountDownLatch(1);
        granted = got;
        refused = null;
        InterProcessMutex m = new InterProcessMutex(c, path);
        Thread t = new Thread(() -> {
            try {
                m.acquire();
                got.countDown();
                m.release();
            } catch (Exception e) {
                refused = e;
                got.countDown();
            }
        });
        t.setDaemon(true);
        t.start();
        while (m.getParticipantNodes().size() < 2) {
            Thread.sleep(5);
        }
        Thread.sleep(200); // it waits in the queue
        return "";
    }

    private String granted() throws Exception {
        granted.await();
        if (refused != null) {
            throw refused;
        }
        return "";
    }

    private String drop() {
        for (CuratorFramework c : opened) {
            Thread t = new Thread(c::close); // without contact this is slow
            t.setDaemon(true);
            t.start();
        }
        opened.clear();
        return "";
    }

    /** The items that were put, and which of them were taken. An item is its number, with zeros up to its size. */
    private static final class Ledger {
        private final String format;
        private final BitSet taken = new BitSet();
        private int put;
        private String wrong;

        Ledger(int size) {
            format = "%0" + size + "d";
        }

        byte[] put() {
            int k;
            synchronized (this) {
                k = put++;
            }
            return String.format(format, k).getBytes(StandardCharsets.US_ASCII);
        }

        /** Returns the number of the item. */
        synchronized int take(byte[] item) {
            int k = Integer.parseInt(new String(item, StandardCharsets.US_ASCII));
            if (k >= put || taken.get(k)) {
                wrong = "item " + k + (k >= put ? " was taken and never put" : " was taken twice");
            }
            taken.set(k);
            return k;
        }

        synchronized void check(int left) {
            if (wrong == null && taken.cardinality() < put) {
                wrong = "item " + taken.nextClearBit(0) + " was put and not taken";
            }
            if (wrong == null && left > 0) {
                wrong = left + " items are in the queue, and all " + put + " were taken";
            }
            if (wrong != null) {
                throw new IllegalStateException(wrong);
            }
        }
    }

    /** A consumer of a queue: puts a batch of items, and takes as many. */
    private interface Consumer extends Closeable {
        void start() throws Exception;

        void put(byte[] item) throws Exception;

        void put(int n) throws Exception;

        void take(int n) throws Exception;
    }

    /** Records an item that was taken. With producers, the one that has put it puts its next one. */
    private void took(byte[] item) {
        int k = ledger.take(item);
        if (fed.length > 0) {
            fed[k % fed.length].release();
        }
    }

    private final class Simple implements Consumer {
        private final SimpleDistributedQueue q;

        Simple(CuratorFramework client, String path) {
            q = new SimpleDistributedQueue(client, path);
        }

        @Override
        public void start() {}

        @Override
        public void put(byte[] item) throws Exception {
            q.offer(item);
        }

        @Override
        public void put(int n) throws Exception {
            for (int i = 0; i < n; i++) {
                put(ledger.put());
            }
        }

        @Override
        public void take(int n) throws Exception {
            for (int i = 0; i < n; i++) {
                took(q.take());
            }
        }

        @Override
        public void close() {}
    }

    /** Items are taken by the thread of any queue, so a turn waits for as many as it has put. */
    private final class Distributed implements Consumer, QueueConsumer<byte[]>, QueueSerializer<byte[]> {
        private final DistributedQueue<byte[]> q;
        private final Semaphore done;
        private int received;

        /** Only puts if done is null. */
        Distributed(CuratorFramework client, String path, boolean locked, Semaphore done) {
            this.done = done;
            QueueBuilder<byte[]> b = QueueBuilder.builder(client, done == null ? null : this, this, path).putInBackground(false).executor(this::process);
            if (locked) {
                b.lockPath(path + "-locks");
            }
            q = b.buildQueue();
        }

        @Override
        public void start() throws Exception {
            q.start();
        }

        /** Processes a node in the thread of the queue. It ends after the node and its lock are deleted. */
        private void process(Runnable node) {
            received = 0;
            node.run();
            done.release(received);
        }

        @Override
        public void consumeMessage(byte[] item) {
            took(item);
            received++;
        }

        @Override
        public void put(byte[] item) throws Exception {
            q.put(item);
        }

        @Override
        public void put(int n) throws Exception {
            if (n == 1) {
                put(ledger.put());
                return;
            }
            int[] rest = {n};
            q.putMulti(() -> rest[0]-- > 0 ? ledger.put() : null);
        }

        @Override
        public void take(int n) throws Exception {
            done.acquire(n);
        }

        @Override
        public void close() throws IOException {
            q.close();
        }

        @Override
        public byte[] serialize(byte[] item) {
            return item;
        }

        @Override
        public byte[] deserialize(byte[] bytes) {
            return bytes;
        }

        @Override
        public void stateChanged(CuratorFramework client, ConnectionState state) {}
    }

    private CuratorFramework observer; // of the queue
    private String queuePath;
    private Ledger ledger;
    private List<Consumer> consumers = new ArrayList<>();
    private int batch;
    private List<Consumer> producers = new ArrayList<>();
    private List<byte[]> items = new ArrayList<>(); // of a fill
    private Semaphore[] fed = {}; // for each producer: its latest item was taken

    /** Returns a consumer, or a producer if done is null. */
    private Consumer consumer(String kind, String servers, int i, Semaphore done) throws Exception {
        CuratorFramework c = client(servers, i);
        return kind.equals("simple") ? new Simple(c, queuePath) : new Distributed(c, queuePath, kind.equals("locked"), done);
    }

    private void begin(String servers, String path, int size) throws Exception {
        observer = client(servers, 0);
        queuePath = path;
        ledger = new Ledger(size);
    }

    private String queue(String kind, String servers, String path, int n, int batch, int size) throws Exception {
        begin(servers, path, size);
        this.batch = batch;
        Semaphore done = new Semaphore(0);
        for (int i = 0; i < n; i++) {
            Consumer c = consumer(kind, servers, i, done);
            consumers.add(c);
            c.start();
        }
        for (Consumer c : consumers) {
            turn(c);
        }
        return "";
    }

    private String fill(String kind, String servers, String path, int n, int putters, int count, int size) throws Exception {
        begin(servers, path, size);
        for (int i = 0; i < count; i++) {
            items.add(ledger.put());
        }
        for (int i = 0; i < Math.max(putters, 1); i++) {
            Consumer p = consumer(kind, servers, n + i, null);
            producers.add(p);
            p.start();
        }
        if (putters == 0) {
            for (byte[] item : items) {
                producers.get(0).put(item);
            }
        }
        fed = new Semaphore[putters];
        Arrays.setAll(fed, i -> new Semaphore(0));
        Semaphore done = new Semaphore(0);
        for (int i = 0; i < n; i++) {
            consumers.add(consumer(kind, servers, i, done));
        }
        return "";
    }

    private String drain() throws Exception {
        int count = items.size();
        AtomicInteger rest = new AtomicInteger(count);
        List<Step> all = new ArrayList<>();
        for (Consumer c : consumers) {
            all.add(() -> {
                c.start();
                while (rest.getAndDecrement() > 0) {
                    c.take(1);
                }
            });
        }
        for (int i = 0; i < fed.length; i++) {
            int first = i;
            all.add(() -> {
                for (int k = first; k < count; k += fed.length) {
                    producers.get(first).put(items.get(k));
                    fed[first].acquire();
                }
            });
        }
        String figures = hammer(all, 0); // each once
        check();
        return count + " " + figures.split(" ")[1];
    }

    private void turn(Consumer c) throws Exception {
        c.put(batch);
        c.take(batch);
    }

    private String turns(long millis) throws Exception {
        List<Step> steps = new ArrayList<>();
        for (Consumer c : consumers) {
            steps.add(() -> turn(c));
        }
        String figures = hammer(steps, millis);
        check();
        return figures;
    }

    private void check() throws Exception {
        // Its server may not know yet what another one's clients took last. The call does not wait, and
        // the server answers the read after it.
        observer.sync().forPath(queuePath);
        ledger.check(observer.getChildren().forPath(queuePath).size());
    }

    private String unqueue() throws Exception {
        for (List<Consumer> all : List.of(consumers, producers)) {
            for (Consumer c : all) {
                c.close();
            }
            all.clear();
        }
        items.clear();
        fed = new Semaphore[0];
        return "";
    }

    /** Makes n members, each with a thread, go through rounds of a double barrier. */
    private String barrier(String servers, String path, int n, int rounds) throws Exception {
        CuratorFramework c = client(servers, 0);
        Exception[] failed = new Exception[1];
        Thread[] threads = new Thread[n];
        long began = System.nanoTime();
        for (int i = 0; i < n; i++) {
            threads[i] = new Thread(() -> {
                try {
                    for (int k = 0; k < rounds; k++) {
                        DistributedDoubleBarrier b = new DistributedDoubleBarrier(c, path + "-" + k, n);
                        b.enter();
                        b.leave();
                    }
                } catch (Exception e) {
                    failed[0] = e;
                }
            });
            threads[i].start();
        }
        for (Thread t : threads) {
            t.join();
        }
        long took = System.nanoTime() - began;
        if (failed[0] != null) {
            throw failed[0];
        }
        return Long.toString(took);
    }

    /** A cache with a session of its own, and what it has seen. */
    private static final class Cached {
        final CuratorFramework client;
        final CountDownLatch synced = new CountDownLatch(1);
        Closeable cache;
        private int changes;

        Cached(CuratorFramework client) {
            this.client = client;
        }

        synchronized void changed() {
            changes++;
            notifyAll();
        }

        synchronized void await(int n) throws InterruptedException {
            while (changes < n) {
                wait();
            }
        }

        /** Returns the number of nodes. */
        int treeCache(String path) throws Exception {
            TreeCache t = TreeCache.newBuilder(client, path).build();
            cache = t;
            t.getListenable().addListener((c, e) -> {
                if (e.getType() == TreeCacheEvent.Type.INITIALIZED) {
                    synced.countDown();
                } else if (e.getType() == TreeCacheEvent.Type.NODE_UPDATED) {
                    changed();
                }
            });
            t.start();
            synced.await();
            return t.size();
        }

        /** Returns the number of nodes. */
        int curatorCache(String path) throws Exception {
            CuratorCache t = CuratorCache.build(client, path);
            cache = t;
            t.listenable().addListener(CuratorCacheListener.builder()
                    .forInitialized(synced::countDown)
                    .forChanges((before, after) -> changed())
                    .build());
            t.start();
            synced.await();
            return t.size();
        }
    }

    private Cached cached;

    private String cache(String servers, String path, String kind) throws Exception {
        cached = new Cached(open(servers.split(",")[0], 20_000));
        long began = System.nanoTime();
        int nodes = kind.equals("tree") ? cached.treeCache(path) : cached.curatorCache(path);
        return (System.nanoTime() - began) + " " + nodes;
    }

    /** Collects until nothing more is freed: the threads of a client end some time after it was closed. */
    private static String heap() throws InterruptedException {
        final int most = 100;
        long used = Long.MAX_VALUE;
        for (int i = 0, same = 0; i < most && same < 5; i++) {
            System.gc();
            long now = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
            same = now < used - 4096 ? 0 : same + 1;
            used = Math.min(used, now);
            Thread.sleep(20);
        }
        return Long.toString(used);
    }

    private String seen(int n) throws Exception {
        cached.await(n);
        return "";
    }

    /** The watches end with the session: the caches would remove them one by one. */
    private String uncache() throws Exception {
        Cached c = cached;
        cached = null;
        c.client.close();
        try {
            c.cache.close();
        } catch (IllegalStateException e) {
            // The client is closed.
        }
        return "";
    }

    private String obey(String[] a) throws Exception {
        switch (a[0]) {
            case "cycles":
                return cycles(a[1], a[2], Integer.parseInt(a[3]), Long.parseLong(a[4]));
            case "contend":
                return contend(a[1], a[2], Integer.parseInt(a[3]), a[4].equals("one"), Long.parseLong(a[5]));
            case "trips":
                return trips(a[1], a[2], Integer.parseInt(a[3]));
            case "share":
                return share(a[1], a[2], Integer.parseInt(a[3]), Integer.parseInt(a[4]), Long.parseLong(a[5]));
            case "together":
                return together(a[1], a[2], Integer.parseInt(a[3]), Long.parseLong(a[4]));
            case "hold":
                return hold(a[1], a[2], Integer.parseInt(a[3]));
            case "heir":
                return heir(a[1], a[2], Integer.parseInt(a[3]));
            case "granted":
                return granted();
            case "drop":
                return drop();
            case "queue":
                return queue(a[1], a[2], a[3], Integer.parseInt(a[4]), Integer.parseInt(a[5]), Integer.parseInt(a[6]));
            case "turns":
                return turns(Long.parseLong(a[1]));
            case "fill":
                return fill(a[1], a[2], a[3], Integer.parseInt(a[4]), Integer.parseInt(a[5]), Integer.parseInt(a[6]), Integer.parseInt(a[7]));
            case "drain":
                return drain();
            case "unqueue":
                return unqueue();
            case "barrier":
                return barrier(a[1], a[2], Integer.parseInt(a[3]), Integer.parseInt(a[4]));
            case "cache":
                return cache(a[1], a[2], a[3]);
            case "heap":
                return heap();
            case "seen":
                return seen(Integer.parseInt(a[1]));
            case "uncache":
                return uncache();
            default:
                throw new IllegalArgumentException("no such command");
        }
    }

    public static void main(String[] args) throws Exception {
        Curator worker = new Curator();
        System.out.println("ok");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            String answer;
            try {
                answer = ("ok " + worker.obey(line.split(" "))).trim();
            } catch (Exception e) {
                answer = "failed " + String.valueOf(e).replace('\n', ' ');
            }
            System.out.println(answer);
        }
        System.exit(0); // sessions end by themselves, or with their servers
    }
}
