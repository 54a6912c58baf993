package coordtest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/coordtest"
)

func TestTheFaultsOfAProxy(t *testing.T) {
	t.Parallel()
	zk := coordtest.StartZooKeeper(t, nil)
	open := func(t *testing.T, p *coordtest.Proxy) backend.Session {
		s := must[backend.Session](t)(zookeeper.New([]string{p.Addr()}, nil).Open(t.Context()))
		t.Cleanup(func() { s.Close() })
		return s
	}
	// A direct session sees what has reached the server.
	direct := must[backend.Session](t)(zookeeper.New(zk.Addrs(), nil).Open(t.Context()))
	defer direct.Close()
	exists := func(t *testing.T, path string) bool {
		t.Helper()
		_, err := direct.Exists(t.Context(), path, nil)
		if err != nil && !errors.Is(err, coord.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	create := func(s backend.Session, path string) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := s.Commit(t.Context(), backend.Create(path, nil, backend.Persistent))
			result <- err
		}()
		return result
	}

	t.Run("DropRequest loses the n-th request of a kind at a path", func(t *testing.T) {
		p := coordtest.NewProxy(t, zk.Addrs()[0])
		s := open(t, p)
		f := p.DropRequest(2, "write", "/a")
		g := p.DropRequest(1, "read", "")
		for _, path := range []string{"/a", "/b"} {
			if err := <-create(s, path); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-create(s, "/a/1"); !errors.Is(err, coord.ErrUncertain) || exists(t, "/a/1") {
			t.Errorf("the second write at /a: %v, there %v", err, exists(t, "/a/1"))
		}
		<-f.Done()
		if _, _, err := s.Get(t.Context(), "/a", nil); err != nil { // reads are repeated
			t.Error(err)
		}
		<-g.Done()
	})
	t.Run("DropReply loses the reply of what is applied", func(t *testing.T) {
		p := coordtest.NewProxy(t, zk.Addrs()[0])
		s := open(t, p)
		f := p.DropReply(1, "create", "")
		if err := <-create(s, "/c"); !errors.Is(err, coord.ErrUncertain) || !exists(t, "/c") {
			t.Errorf("a write: %v, there %v", err, exists(t, "/c"))
		}
		<-f.Done()
	})
	t.Run("HoldRequest and HoldReply hold until Release", func(t *testing.T) {
		p := coordtest.NewProxy(t, zk.Addrs()[0])
		s := open(t, p)
		f := p.HoldRequest(1, "", "/d")
		made := create(s, "/d")
		<-f.Done()
		if exists(t, "/d") {
			t.Error("a held request has reached the server")
		}
		f.Release()
		if err := <-made; err != nil {
			t.Error(err)
		}
		f = p.HoldReply(1, "", "/e")
		made = create(s, "/e")
		<-f.Done()
		if !exists(t, "/e") {
			t.Error("the request of a held reply has not been applied")
		}
		select {
		case err := <-made:
			t.Errorf("a call with a held reply has returned %v", err)
		default:
		}
		f.Release()
		if err := <-made; err != nil {
			t.Error(err)
		}
	})
	for name, hold := range map[string]bool{"Hold loses nothing": true, "Blackhole loses everything": false} {
		t.Run(name, func(t *testing.T) {
			p := coordtest.NewProxy(t, zk.Addrs()[0])
			s := open(t, p)
			fault, path := p.Blackhole, "/lost"
			if hold {
				fault, path = p.Hold, "/held"
			}
			fault(true)
			made := create(s, path)
			if exists(t, path) {
				t.Errorf("%s has reached the server", path)
			}
			fault(false)
			err := <-made
			switch {
			case hold && err != nil:
				t.Errorf("a held write: %v", err)
			case !hold && err == nil != exists(t, path): // it can have been sent after the hole
				t.Errorf("a write into a black hole: %v, there %v", err, exists(t, path))
			}
		})
	}
	t.Run("Expire ends the sessions that came through", func(t *testing.T) {
		p, other := coordtest.NewProxy(t, zk.Addrs()[0]), coordtest.NewProxy(t, zk.Addrs()[0])
		s, bystander := open(t, p), open(t, other)
		gone := open(t, p)
		gone.Close()
		if _, err := s.Commit(t.Context(), backend.Create("/f", nil, backend.Ephemeral)); err != nil {
			t.Fatal(err)
		}
		p.Expire()
		if exists(t, "/f") {
			t.Error("an ephemeral node is there after Expire")
		}
		<-s.Done()
		if err := bystander.Sync(t.Context(), "/"); err != nil {
			t.Errorf("another session: %v", err)
		}
	})
	t.Run("a raw proxy carries any bytes", func(t *testing.T) {
		p := coordtest.NewRawProxy(t, zk.Addrs()[0])
		s := open(t, p)
		p.Delay(30 * time.Millisecond)
		began := time.Now()
		if err := <-create(s, "/g"); err != nil || time.Since(began) < 60*time.Millisecond {
			t.Errorf("a write: %v after %v", err, time.Since(began))
		}
		_, changed := s.Status()
		p.Refuse(true)
		<-changed
		p.Refuse(false)
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Error(err)
		}
	})
	t.Run("misuse is refused", func(t *testing.T) {
		for want, do := range map[string]func(tb testing.TB){
			`unknown kind of request "wirte"`: func(tb testing.TB) { coordtest.NewProxy(tb, zk.Addrs()[0]).DropReply(1, "wirte", "") },
			"cannot tell requests apart":      func(tb testing.TB) { coordtest.NewRawProxy(tb, zk.Addrs()[0]).DropReply(1, "", "") },
			"cannot expire sessions":          func(tb testing.TB) { coordtest.NewRawProxy(tb, zk.Addrs()[0]).Expire() },
			"no session to expire":            func(tb testing.TB) { coordtest.NewProxy(tb, zk.Addrs()[0]).Expire() },
			"never struck: the request 1":     func(tb testing.TB) { coordtest.NewProxy(tb, zk.Addrs()[0]).HoldRequest(1, "", "/x") },
		} {
			if r := watch(t, do); !strings.Contains(r.said(), want) {
				t.Errorf("said %q, want %q", r.said(), want)
			}
		}
	})
}
