//go:build linux

package etcd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/proc"
)

// memberEnv makes the test binary a member of a cluster. It names the member's configuration.
const memberEnv = "COORD_ETCD_MEMBER"

// Every binary with this file can be a member, so nothing needs to be installed. A TestMain would
// be too late: some binaries that this file is built into have one that knows nothing of members.
func init() {
	if file := os.Getenv(memberEnv); file != "" {
		fmt.Fprintln(os.Stderr, serve(file))
		os.Exit(1)
	}
}

// serve is the process of a member. It ends with an error only.
func serve(file string) error {
	cfg, err := embed.ConfigFromFile(file)
	if err != nil {
		return err
	}
	wal.SegmentSizeBytes = 4 << 20 // so that a member soon notices that its disk is full
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	return <-e.Err()
}

// The timing of the members.
const (
	heartbeat = 100 * time.Millisecond
	election  = time.Second
)

// cluster is three members, each of which is a process.
type cluster struct {
	members []*member
	peers   *peers // between the members, or nil
}

type member struct {
	addr, config, log string

	mu   sync.Mutex
	cmd  *exec.Cmd // nil while the process is down
	done <-chan struct{}
}

// startCluster starts the members with this binary, or with the etcd of COORD_ETCD, and returns
// when they serve. dirs are those of their data, or nil.
func startCluster(t *testing.T, dirs []string) *cluster {
	t.Helper()
	return startClusterOn(t, dirs, false)
}

// startClusterOn is startCluster. If apart, the members can be cut off from each other.
func startClusterOn(t *testing.T, dirs []string, apart bool) *cluster {
	t.Helper()
	for tries := 1; ; tries++ {
		c, err := newCluster(t, dirs, apart)
		if err == nil {
			return c
		}
		if !errors.Is(err, errPortTaken) || tries == 5 {
			t.Fatal(err)
		}
	}
}

func newCluster(t *testing.T, dirs []string, apart bool) (_ *cluster, err error) {
	t.Helper()
	ports, err := free(6)
	if err != nil {
		return nil, err
	}
	dir := t.TempDir()
	c := new(cluster)
	known := ports[3:] // by which the members know each other
	if apart {
		if c.peers, err = newPeers(3); err != nil {
			return nil, err
		}
		known = nil
		for _, l := range c.peers.listeners {
			known = append(known, l.Addr().String())
		}
		t.Cleanup(c.peers.close)
	}
	var all []string
	for i := range 3 {
		all = append(all, fmt.Sprintf("m%d=http://%s", i, known[i]))
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			if m.Kill(); t.Failed() {
				t.Logf("the end of the log of %s:\n%s", m.addr, m.lastWords())
			}
		}
	})
	for i := range 3 {
		data := filepath.Join(dir, fmt.Sprint(i))
		if dirs != nil && dirs[i] != "" {
			data = filepath.Join(dirs[i], filepath.Base(dir)) // another one in each try
		}
		client, peer := "http://"+ports[i], "http://"+ports[3+i]
		text, err := json.Marshal(map[string]any{
			"name": fmt.Sprint("m", i), "data-dir": data,
			"heartbeat-interval": heartbeat.Milliseconds(), "election-timeout": election.Milliseconds(),
			"listen-client-urls": client, "advertise-client-urls": client,
			"listen-peer-urls": peer, "initial-advertise-peer-urls": "http://" + known[i], "initial-cluster": strings.Join(all, ","),
			"log-level": "error", "logger": "zap", "log-outputs": []string{"stderr"},
		})
		if err != nil {
			return nil, err
		}
		m := &member{addr: ports[i], config: filepath.Join(dir, fmt.Sprint(i, ".json")), log: filepath.Join(dir, fmt.Sprint(i, ".log"))}
		if err := os.WriteFile(m.config, text, 0o644); err != nil {
			return nil, err
		}
		c.members = append(c.members, m)
		if c.peers != nil {
			c.peers.add(m, ports[3+i])
		}
		if err := m.Launch(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, m := range c.members {
		if err := m.Await(ctx); err != nil {
			for _, m := range c.members {
				m.Kill()
			}
			return nil, err
		}
	}
	return c, nil
}

var errPortTaken = errors.New("a port is taken")

// running reports whether the process has not ended.
func (m *member) running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return false
	default:
		return m.cmd != nil
	}
}

// pid returns that of the process, or 0 while it is down.
func (m *member) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return 0
	}
	return m.cmd.Process.Pid
}

// lastWords returns the end of the log.
func (m *member) lastWords() string {
	log, _ := os.ReadFile(m.log) // what there is
	return string(log[max(0, len(log)-4000):])
}

func (c *cluster) Addrs() (addrs []string) {
	for _, m := range c.members {
		addrs = append(addrs, m.addr)
	}
	return addrs
}

// Launch starts the process, unless it runs.
func (m *member) Launch() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	path := binary
	if path == "" {
		if path, err = os.Executable(); err != nil {
			return err
		}
	}
	cmd := exec.Command(path, "--config-file", m.config)
	cmd.Env = append(os.Environ(), memberEnv+"="+m.config)
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := proc.Launch(cmd, nil)
	log.Close()
	if err != nil {
		return err
	}
	m.cmd, m.done = cmd, exited
	return nil
}

// Kill ends the process, also a paused one.
func (m *member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Kill() // it may have ended by itself
		<-m.done
		m.cmd = nil
	}
}

func (m *member) Pause() error  { return m.signal(syscall.SIGSTOP) }
func (m *member) Resume() error { return m.signal(syscall.SIGCONT) }

func (m *member) signal(sig os.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return errors.New("the member is down")
	}
	return m.cmd.Process.Signal(sig)
}

// status asks the member who leads.
func (m *member) status(ctx context.Context) (*pb.StatusResponse, error) {
	cc, err := dial(m.addr)
	if err != nil {
		return nil, err
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return pb.NewMaintenanceClient(cc).Status(ctx, &pb.StatusRequest{}, grpc.WaitForReady(true))
}

// Await returns when the member answers linearizable reads, or when its process has ended.
func (m *member) Await(ctx context.Context) error {
	m.mu.Lock()
	ended := m.done
	m.mu.Unlock()
	for {
		// gRPC connects again after growing pauses, so each try has a connection of its own.
		err := m.answer(ctx)
		select {
		case <-ended:
			if log := m.lastWords(); strings.Contains(log, "address already in use") {
				return fmt.Errorf("member %s: %w", m.addr, errPortTaken)
			}
			return fmt.Errorf("member %s has ended: %s", m.addr, m.lastWords())
		default:
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// answer waits up to a second for an answer.
func (m *member) answer(ctx context.Context) error {
	cc, err := dial(m.addr)
	if err != nil {
		return err
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = pb.NewKVClient(cc).Range(ctx, &pb.RangeRequest{Key: []byte("x")}, grpc.WaitForReady(true))
	return err
}

func (c *cluster) Servers() (all []ensemble.Server) {
	for _, m := range c.members {
		all = append(all, m)
	}
	return all
}

// Leader returns the leader. One that is paused or dead does not count.
func (c *cluster) Leader(ctx context.Context) (ensemble.Server, error) {
	for ; ; time.Sleep(50 * time.Millisecond) { // between two looks at what nothing signals
		for _, m := range c.members {
			r, err := m.status(ctx)
			if err == nil && r.Leader != 0 && r.Leader == r.Header.MemberId {
				return m, nil
			}
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no leader: %w", ctx.Err())
		}
	}
}
