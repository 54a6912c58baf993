package zookeeper

import (
	"strings"

	"github.com/go-coord/coord/backend/internal/contact"
)

// Values that are printed by mistake end up in logs. A session holds two credentials: those
// of the user, and the password by which the service identifies the session.

func (s *service) String() string {
	if s.cfg == nil {
		return "zookeeper backend"
	}
	return "zookeeper backend " + strings.Join(s.cfg.servers, ",")
}

func (s *service) GoString() string { return s.String() }

func (s *session) String() string   { return "zookeeper session " + contact.Hex(s.ID()) }
func (s *session) GoString() string { return s.String() }
