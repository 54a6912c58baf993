package contact

import "github.com/go-coord/coord/backend"

// Reports are the calls of a backend.Reporter for the sessions of one service. Without one, or on nil, the methods do nothing.
type Reports struct {
	user    *User
	to      backend.Reporter
	service string
}

// Reports returns those to a Reporter, which may be nil.
func (u *User) Reports(to backend.Reporter, service string) *Reports {
	return &Reports{u, to, service}
}

// Opened reports a session that holds nothing yet.
func (r *Reports) Opened(t backend.Ticket) {
	if r == nil || r.to == nil {
		return
	}
	t.Service = r.service
	_ = r.user.call("Opened of Options.Reporter", func() error { r.to.Opened(t); return nil })
}

// Ended reports a session that has ended by an answer of the service.
func (r *Reports) Ended(id int64) {
	if r == nil || r.to == nil {
		return
	}
	_ = r.user.call("Ended of Options.Reporter", func() error { r.to.Ended(r.service, id); return nil })
}
