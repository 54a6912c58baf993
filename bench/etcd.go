package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/go-coord/coord/internal/proc"
)

// clusterToken is the token of the cluster.
const clusterToken = "coord-bench"

// etcdCluster is three etcd servers.
type etcdCluster struct {
	version string
	dir     string
	addrs   []string
	cmds    []*exec.Cmd
	exited  []<-chan struct{}
	outposts
}

// startEtcd starts three servers, with their data beside that of the ZooKeeper servers: of an etcd
// command, or of the server that is part of this command if binary is empty. etcd waits for the
// disk on every commit.
func startEtcd(ctx context.Context, binary string) (_ *etcdCluster, err error) {
	x := &etcdCluster{version: embeddedVersion()}
	if binary != "" {
		b, err := exec.CommandContext(ctx, binary, "--version").Output()
		if err != nil {
			return nil, err
		}
		line, _, _ := strings.Cut(string(b), "\n")
		x.version = strings.TrimPrefix(line, "etcd Version: ")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if x.dir, err = os.MkdirTemp("", "coord-etcd-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Close())
		}
	}()
	const members = 3
	ports, err := freePorts(2 * members)
	if err != nil {
		return nil, err
	}
	var cluster []string
	for i := range members {
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, ports[2*i+1]))
	}
	for i := range members {
		client, peer := "http://"+ports[2*i], "http://"+ports[2*i+1]
		name, dir, all := fmt.Sprint("m", i), filepath.Join(x.dir, fmt.Sprint(i)), strings.Join(cluster, ",")
		cmd := exec.Command(self, memberVerb, name, dir, client, peer, all)
		if binary != "" {
			cmd = exec.Command(binary, "--name", name, "--data-dir", dir,
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
				"--initial-cluster", all, "--initial-cluster-token", clusterToken, "--log-level", "error")
		}
		log, err := os.Create(filepath.Join(x.dir, fmt.Sprintf("%d.log", i)))
		if err != nil {
			return nil, err
		}
		cmd.Stdout, cmd.Stderr = log, log
		exited, err := proc.Launch(cmd, nil)
		log.Close()
		if err != nil {
			return nil, err
		}
		x.cmds, x.exited = append(x.cmds, cmd), append(x.exited, exited)
		x.addrs = append(x.addrs, ports[2*i])
	}
	// The cluster serves when it accepts a write.
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	c, err := x.client(x.addrs)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.Put(ctx, "coord-bench", "up"); err != nil {
		log, _ := os.ReadFile(filepath.Join(x.dir, "0.log"))
		return nil, fmt.Errorf("etcd does not serve: %w; its log: %s", err, log)
	}
	return x, nil
}

func (x *etcdCluster) client(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, DialTimeout: 30 * time.Second, Logger: zap.NewNop()})
}

// metered returns a context with which hammer counts the requests and the processor time of
// these servers.
func (x *etcdCluster) metered(ctx context.Context) context.Context {
	return context.WithValue(ctx, meterKey{}, &meter{requests: x.requests, processors: x.processors})
}

// requests returns the number of messages of clients that the servers have received, by their
// own count.
func (x *etcdCluster) requests(ctx context.Context) (n float64, known bool) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, a := range x.addrs {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a+"/metrics", nil)
		if err != nil {
			return 0, false
		}
		r, err := client.Do(req)
		if err != nil {
			return 0, false
		}
		k, known := sumOf("grpc_server_msg_received_total", r.Body)
		r.Body.Close()
		if !known {
			return 0, false
		}
		n += k
	}
	return n, true
}

// sumOf adds the values of a metric in Prometheus' text format.
func sumOf(metric string, text io.Reader) (sum float64, known bool) {
	in := bufio.NewScanner(text)
	for in.Scan() {
		labels, ok := strings.CutPrefix(in.Text(), metric)
		if !ok || labels == "" || labels[0] != '{' && labels[0] != ' ' {
			continue
		}
		v, err := strconv.ParseFloat(labels[strings.LastIndexByte(labels, ' ')+1:], 64)
		if err != nil {
			return 0, false
		}
		sum, known = sum+v, true
	}
	return sum, known && in.Err() == nil
}

// processors returns the processor time of the servers so far.
func (x *etcdCluster) processors() (sum time.Duration, known bool) {
	for _, cmd := range x.cmds {
		t, ok := processorTimeOf(cmd.Process.Pid)
		if !ok {
			return 0, false
		}
		sum += t
	}
	return sum, true
}

// cut cuts a place off from the servers.
func (x *etcdCluster) cut(p *place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, q := range x.proxies[p] {
		q.Blackhole(true)
	}
}

// contestant is etcd's concurrency package on this cluster.
func (x *etcdCluster) contestant() *contestant {
	return &contestant{who: byEtcd, where: onEtcd, dial: func(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
		addrs, err := x.at(p, x.addrs)
		if err != nil {
			return nil, err
		}
		c, err := x.client(addrs[i%len(addrs) : i%len(addrs)+1])
		if err != nil {
			return nil, err
		}
		conn := &etcdConn{c: c, ttl: int(timeout / time.Second)}
		_, err = conn.session(ctx, 0)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}}
}

func (x *etcdCluster) Close() error {
	x.outposts.close()
	for i, cmd := range x.cmds {
		_ = cmd.Process.Kill() // it may have ended by itself
		<-x.exited[i]
	}
	return os.RemoveAll(x.dir)
}

// etcdConn is a client of etcd, with a lease for every caller that needs one: the lease is
// the name of a contender.
type etcdConn struct {
	c   *clientv3.Client
	ttl int

	mu       sync.Mutex
	sessions map[int]*concurrency.Session
}

func (x *etcdConn) session(ctx context.Context, caller int) (*concurrency.Session, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.sessions[caller]; s != nil {
		return s, nil
	}
	// The context of a session is that of its keep-alive.
	opened := make(chan struct{})
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-opened:
		default:
			cancel()
		}
	})
	defer stop()
	s, err := concurrency.NewSession(x.c, concurrency.WithTTL(x.ttl), concurrency.WithContext(life))
	close(opened)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open a session of etcd: %w", err)
	}
	if x.sessions == nil {
		x.sessions = make(map[int]*concurrency.Session)
	}
	x.sessions[caller] = s
	return s, nil
}

func (x *etcdConn) locker(ctx context.Context, path string, caller int) (locker, error) {
	s, err := x.session(ctx, caller)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, path)
	return func(ctx context.Context) (func() error, error) {
		if err := m.Lock(ctx); err != nil {
			return nil, err
		}
		return func() error { return m.Unlock(context.WithoutCancel(ctx)) }, nil
	}, nil
}

func (x *etcdConn) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.sessions {
		s.Orphan() // the lease ends by itself; its server may be dead
	}
	return x.c.Close()
}

// freePorts returns addresses without a listener a moment ago.
func freePorts(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}
