//go:build linux

package interop

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

func (s *scene) rwmutex() *coord.RWMutex {
	return coord.NewRWMutex(s.c, s.path, &coord.RWMutexOptions{Data: []byte("ours")})
}

func readersAndWriters(t *testing.T, w *crew) {
	s := newScene(t)
	rw := s.rwmutex()
	java, other := w.java[0], w.java[1]

	// Readers of both languages hold concurrently. Writers of both are excluded.
	ours := s.hold(rw.RLock)
	theirs := java.lock(t, "read", s.path).granted()
	more := s.hold(rw.TryRLock)
	s.locked("a writer beside readers", rw.TryLock)
	if other.try(t, "write", s.path) {
		t.Error("a writer of Java overtook a reader of coord")
	}
	s.release(ours)
	s.release(more)
	s.locked("a writer beside a reader of Java", rw.TryLock)

	// coord's writer waits for Java's reader; Java's reader and writer wait for coord's
	// writer, and a reader of coord for both writers.
	writer := s.lock(rw.Lock)
	s.queued(2)
	javaReader := other.lock(t, "read", s.path)
	s.queued(3)
	javaWriter := java.lock(t, "write", s.path)
	s.queued(4)
	reader := s.lock(rw.RLock)
	s.queued(5)
	s.locked("a reader behind writers", rw.TryRLock)
	writer.pending()
	theirs.release()
	h := writer.hold()
	javaReader.pending()
	javaWriter.pending()
	reader.pending()
	if h.Token() <= theirs.czid {
		t.Errorf("token %#x after %#x", h.Token(), theirs.czid)
	}
	s.release(h)
	javaReader.granted()
	javaWriter.pending()
	reader.pending()
	javaReader.release()
	javaWriter.granted()
	reader.pending()
	s.locked("a reader beside a writer of Java", rw.TryRLock)
	s.locked("a writer beside a writer of Java", rw.TryLock)
	javaWriter.release()
	s.release(reader.hold())
	s.empty()
}

// downgradeKeepsJavaOut: the waiting writers list again when the node of coord's writer is
// deleted, and find the node of coord's reader in its place.
func downgradeKeepsJavaOut(t *testing.T, w *crew) {
	s := newScene(t)
	rw := s.rwmutex()
	h := s.hold(rw.Lock)
	token := h.Token()
	reader := w.java[0].lock(t, "read", s.path)
	s.queued(2)
	writer := w.java[1].lock(t, "write", s.path)
	s.queued(3)
	if err := rw.Downgrade(s.ctx(), h); err != nil {
		t.Fatal(err)
	}
	reader.granted() // a reader right behind is granted
	reader.release()
	s.queued(2) // the writer watches the node of coord's reader now
	writer.pending()
	if err := h.Verify(s.ctx()); err != nil || h.Token() != token {
		t.Errorf("the hold after the downgrade: token %#x, was %#x, %v", h.Token(), token, err)
	}
	s.release(h)
	writer.granted()
	if writer.czid <= token {
		t.Errorf("the writer has token %#x after %#x", writer.czid, token)
	}
	writer.release()

	// The next waiting writer is Java's, without a reader between.
	h = s.hold(rw.Lock)
	writer = w.java[1].lock(t, "write", s.path)
	s.queued(2)
	if err := rw.Downgrade(s.ctx(), h); err != nil {
		t.Fatal(err)
	}
	s.queued(2)
	writer.pending()
	s.release(h)
	writer.granted().release()
	s.empty()
}

// readersAndWritersTakeTurns: writers of Java and of coord visit the room in a loop. coord's
// readers, and its downgraded writers, check that no writer is in it.
func readersAndWritersTakeTurns(t *testing.T, w *crew) {
	s, r := newScene(t), newRoom(t)
	rw := s.rwmutex()
	d := 2 * time.Second
	if long() {
		d = time.Minute
	}
	for _, p := range w.java {
		p.tell(t, "loop", "write", s.path, r.addr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	read, wrote := 0, 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			h, err := rw.Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			r.hear("enter ours " + h.Path())
			if err := h.Verify(t.Context()); err != nil {
				t.Error(err)
			}
			r.hear(fmt.Sprint("leave ours ", h.Token()))
			if wrote++; wrote%2 == 0 {
				if err := rw.Downgrade(t.Context(), h); err != nil {
					t.Error(err)
				}
				if n := r.visitors(); n != 0 {
					t.Errorf("%d writers of Java beside coord's downgraded writer", n)
				}
			}
			s.release(h)
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			h, err := rw.RLock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if n := r.visitors(); n != 0 {
				t.Errorf("%d writers beside coord's reader", n)
			}
			read++
			s.release(h)
		}
	})
	wg.Wait()
	for _, p := range w.java {
		p.tell(t, "stop")
	}
	for _, p := range w.java {
		p.await(t, "looped")
	}
	s.empty()
	total, list, overlaps, wrong := r.state()
	if overlaps > 0 || wrong != "" {
		t.Errorf("%d overlaps; %s", overlaps, wrong)
	}
	if theirs := r.turnsOf("java1") + r.turnsOf("java2"); theirs < 3 || read < 3 || wrote < 3 {
		t.Errorf("%d writes of Java, %d of coord and %d reads: too few", theirs, wrote, read)
	}
	t.Logf("figure: Curator's write lock and coord's RWMutex on one path for %v: %d turns of writers (%s; every second of coord downgraded), %d of coord's readers, %d overlaps",
		d, total, list, read, overlaps)
}
