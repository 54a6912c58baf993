package zookeeper

import (
	"errors"
	"time"

	"github.com/go-coord/coord/backend"
)

const (
	drainTime = time.Second             // in Close, for calls under way and for contact to come back
	byeTime   = time.Second             // for the reply to the close request
	closeTime = 3500 * time.Millisecond // for Close except the log, in case Options.Dial does not return
	logTime   = time.Second             // in Close, for lines that the Logger has not handled yet
)

// Close ends the session on the servers if it can.
func (s *session) Close() error {
	s.end(backend.ErrClosed)
	s.shutDown()
	defer s.log.Drain(logTime)
	timer := time.NewTimer(closeTime)
	defer timer.Stop()
	select {
	case <-s.joined:
		return nil
	case <-timer.C:
		return &backend.Error{Op: "close", Err: errors.New("Options.Dial does not return although its context has ended")}
	}
}

// shutDown starts the goroutine that ends everything else, when the session is closed or
// lost. A second call does nothing.
func (s *session) shutDown() { s.downOnce.Do(func() { go s.own() }) }

// own is the goroutine that shuts the session down and joins all other goroutines. It ends
// last.
func (s *session) own() {
	defer close(s.joined)
	<-s.started
	over := make(chan struct{}) // closed when the zk client has ended
	go func() {
		defer close(over)
		for range s.events { // what did not fit was dropped
		}
	}()
	if !s.isSealed() && s.drain() {
		s.bye(over)
	}
	s.seal()
	// The zk client is about to use its farewell connection, unless it has ended already. If
	// the session closed it earlier, it could quit at a point where its own Close waits for a
	// full second.
	select {
	case <-s.leaving:
		s.zk.Close()
	case <-over:
	}
	<-over
	<-s.idle
	s.stopWatch()
	s.work.Wait()
}

// drain waits for the calls under way, and for a server if there is no contact at the moment.
// It reports whether there is contact.
func (s *session) drain() bool {
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	idle := s.idle
	for {
		s.mu.Lock()
		linked, change := s.linked, s.change
		s.mu.Unlock()
		if linked && idle == nil {
			return true
		}
		select {
		case <-idle:
			idle = nil
		case <-change:
		case <-timer.C:
			return linked
		case <-s.sealed:
			return false
		}
	}
}

// bye makes the zk client send its close request, and waits until the zk client has ended.
func (s *session) bye(over <-chan struct{}) {
	timer := time.NewTimer(byeTime)
	defer timer.Stop()
	said := make(chan struct{})
	go func() {
		defer close(said)
		s.zk.Close()
	}()
	select {
	case <-over:
	case <-timer.C:
		s.seal()
	case <-s.sealed:
	}
	<-said
}
