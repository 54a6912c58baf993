package zktest

import (
	"errors"
	"os/exec"
	"runtime"
	"sync"
)

var errClosed = errors.New("zktest: ensemble closed")

// A spawner starts processes on one operating-system thread that lives as long as they do.
// Linux sends a child its parent-death signal when the thread that started it ends, and Go
// may end any thread to which no goroutine is locked.
type spawner struct {
	requests chan spawnRequest
	done     chan struct{}

	mu      sync.Mutex
	refused bool
	sending sync.WaitGroup // calls of start that may still use requests
}

type spawnRequest struct {
	cmd    *exec.Cmd
	result chan error
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan spawnRequest), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *spawner) run() {
	defer close(s.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for r := range s.requests {
		r.result <- r.cmd.Start()
	}
}

// start starts cmd. It fails after refuse.
func (s *spawner) start(cmd *exec.Cmd) error {
	s.mu.Lock()
	if s.refused {
		s.mu.Unlock()
		return errClosed
	}
	s.sending.Add(1)
	s.mu.Unlock()
	defer s.sending.Done()
	r := spawnRequest{cmd, make(chan error, 1)}
	s.requests <- r
	return <-r.result
}

func (s *spawner) isRefused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// refuse makes later calls of start fail, and waits for calls under way.
func (s *spawner) refuse() {
	s.mu.Lock()
	s.refused = true
	s.mu.Unlock()
	s.sending.Wait()
}

// end releases the thread. It is called after refuse.
func (s *spawner) end() {
	close(s.requests)
	<-s.done
}
