package coordtest

import (
	"slices"
	"sync"

	"github.com/go-coord/coord/backend"
)

// Reports is a backend.Reporter that keeps what it learns.
type Reports struct {
	Before func()        // called first by Opened, if it is not nil
	News   chan struct{} // capacity 1: Ended was called

	service string
	mu      sync.Mutex
	opened  []backend.Ticket
	ended   []int64
}

// NewReports returns a Reporter for the sessions of one service.
func NewReports(service string) *Reports {
	return &Reports{service: service, News: make(chan struct{}, 1)}
}

// Opened is part of backend.Reporter.
func (r *Reports) Opened(t backend.Ticket) {
	if r.Before != nil {
		r.Before()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = append(r.opened, t)
}

// Ended is part of backend.Reporter.
func (r *Reports) Ended(service string, id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if service == r.service {
		r.ended = append(r.ended, id)
	}
	select {
	case r.News <- struct{}{}:
	default:
	}
}

// List returns the sessions that were opened, and the ids of those that have ended.
func (r *Reports) List() (opened []backend.Ticket, ended []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.opened), slices.Clone(r.ended)
}
