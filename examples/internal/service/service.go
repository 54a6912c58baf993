// Package service is shared by the tour and by the tests of the examples: it opens the service from
// the flags of the command line, cuts links, and prints the story.
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
	"github.com/go-coord/coord/trace"
)

// A Service is the environment of one run of an example.
type Service struct {
	// Root is a node for this run only, to be the Namespace of its clients. It is removed at
	// the end with its subtree.
	Root string
	// Timeout is the requested timeout of sessions. A server may grant another one.
	Timeout time.Duration
	// About describes the service for the reader.
	About string

	link  func(name string) Link
	start time.Time

	mu      sync.Mutex
	out     io.Writer
	links   []Link
	clients []*coord.Client
}

// New returns a service whose clients use the links that link returns.
func New(root string, timeout time.Duration, link func(name string) Link, out io.Writer) *Service {
	return &Service{Root: root, Timeout: timeout, link: link, out: out, start: time.Now()}
}

// Link returns a new connection to the service, for one client. Memory uses the name: there
// the same name is the same link.
func (s *Service) Link(name string) Link { return s.link(name) }

// Open opens a client as a program does, with coord.Open, and returns the link that can cut
// it off. Close closes it.
func (s *Service) Open(ctx context.Context, name string) (*coord.Client, Link, error) {
	link := s.Link(name)
	c, err := s.OpenWith(ctx, link, nil)
	return c, link, err
}

// OpenWith is Open over a given link, with a Trace or nil.
func (s *Service) OpenWith(ctx context.Context, link Link, trace func(context.Context, trace.Event)) (*coord.Client, error) {
	// Open waits for a service that cannot be reached, so the wait is bounded.
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
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
		link.Heal() // so that the session ends on the service too
	}
	var err error
	for _, c := range slices.Backward(clients) {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, s.remove(ctx))
}

// Say prints a line with the time since the start and its subject, which may be empty. It is
// safe for concurrent use.
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

// remove deletes Root with its subtree, including nodes of sessions that the service has not
// ended yet.
func (s *Service) remove(ctx context.Context) error {
	for {
		err := s.removeOnce(ctx)
		// A session can end early on a busy machine. Deleting again is harmless.
		again := errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrUncertain)
		if err == nil || !again || ctx.Err() != nil {
			if err != nil {
				err = fmt.Errorf("%s is left: %w", s.Root, err)
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
	// The parent is the container of all runs of all examples. If it was missing, a client
	// has created it, and the service removes it when it is empty.
	return nil
}

// gone reports that the node is already deleted, for example by the service, which removes
// empty containers.
func gone(err error) bool { return errors.Is(err, backend.ErrNotFound) }
