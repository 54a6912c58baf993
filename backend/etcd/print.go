package etcd

import (
	"strings"

	"github.com/go-coord/coord/backend/internal/contact"
)

// Values that are printed by mistake end up in logs, and a session that is printed field by field is read without its
// locks.

func (s *service) String() string {
	if s.cfg == nil {
		return "etcd backend"
	}
	return "etcd backend " + strings.Join(s.cfg.servers, ",")
}

func (s *service) GoString() string { return s.String() }

func (s *session) String() string   { return "etcd session " + contact.Hex(s.id) }
func (s *session) GoString() string { return s.String() }
