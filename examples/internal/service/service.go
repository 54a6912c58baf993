// Package service is what the examples share: it opens the service that an example
// runs on from the flags of its command line, and prints its story. There is
// nothing in it that a program needs which is not an example.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// A Service is what one run of an example stands on.
type Service struct {
	// Root is a node of this run alone, to be the Namespace of its clients. It is
	// removed at the end with all that is below it.
	Root string
	// Timeout of sessions, as asked for. A server may grant another.
	Timeout time.Duration
	// About says for people which service it is.
	About string

	link  func(name string) Link
	start time.Time

	mu      sync.Mutex
	out     io.Writer
	links   []Link
	clients []*coord.Client
}

// New returns a service whose clients have the ways in that link returns.
func New(root string, timeout time.Duration, link func(name string) Link, out io.Writer) *Service {
	return &Service{Root: root, Timeout: timeout, link: link, out: out, start: time.Now()}
}

// Link returns a new way to the service, for one client. The name is for memory,
// where the same name is the same way.
func (s *Service) Link(name string) Link { return s.link(name) }

// Open opens a client as a program does, with coord.Open, and returns the link that
// can cut it off as well. Close closes it.
func (s *Service) Open(ctx context.Context, name string) (*coord.Client, Link, error) {
	link := s.Link(name)
	c, err := s.OpenWith(ctx, link, nil)
	return c, link, err
}

// OpenWith is Open over a given link, with a Trace or nil.
func (s *Service) OpenWith(ctx context.Context, link Link, trace func(context.Context, coord.Event)) (*coord.Client, error) {
	// A service that cannot be reached is waited for, so bound the wait.
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	c, err := coord.Open(ctx, link, &coord.Options{Namespace: s.Root, Trace: trace})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links, s.clients = append(s.links, link), append(s.clients, c)
	return c, nil
}

// Close closes all clients, the latest first, and removes Root.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	links, clients := s.links, s.clients
	s.links, s.clients = nil, nil
	s.mu.Unlock()
	if len(clients) == 0 {
		return nil // the service could not be reached, so there is nothing to remove
	}
	for _, link := range links {
		link.Heal() // so that the session is ended on the service too
	}
	var err error
	for _, c := range slices.Backward(clients) {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, s.remove(ctx))
}

// Say prints a line with the time since the start and who it is about, who may be
// nobody. It is safe for concurrent use.
func (s *Service) Say(who, format string, args ...any) {
	if who != "" {
		who = fmt.Sprintf("%-8s ", who)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%7.3fs  %s%s\n", time.Since(s.start).Seconds(), who, fmt.Sprintf(format, args...))
}

// Break prints an empty line.
func (s *Service) Break() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out)
}

// remove deletes Root with all that is below it, also what belongs to sessions that
// the service has not ended yet.
func (s *Service) remove(ctx context.Context) error {
	for {
		err := s.removeOnce(ctx)
		// On a machine that is busy a session can end early. To delete again does no harm.
		again := errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrUncertain)
		if err == nil || !again || ctx.Err() != nil {
			if err != nil {
				err = fmt.Errorf("%s stays behind: %w", s.Root, err)
			}
			return err
		}
	}
}

func (s *Service) removeOnce(ctx context.Context) error {
	session, err := s.Link("cleaner").Open(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := session.Sync(ctx, s.Root); err != nil {
		return err
	}
	paths := []string{s.Root}
	for i := 0; i < len(paths); i++ {
		names, _, err := session.Children(ctx, paths[i], nil)
		if err != nil && !gone(err) {
			return err
		}
		for _, name := range names {
			paths = append(paths, paths[i]+"/"+name)
		}
	}
	for _, path := range slices.Backward(paths) { // children before their parents
		_, err := session.Commit(ctx, backend.Delete(path, backend.AnyVersion))
		if err != nil && !gone(err) {
			return err
		}
	}
	// The parent is the container of all runs of all examples. If it was missing,
	// a client has made it, and it goes by itself when it is empty.
	return nil
}

// gone: what is to be removed has been removed, by the service for example, which
// removes empty containers.
func gone(err error) bool { return errors.Is(err, backend.ErrNotFound) }
