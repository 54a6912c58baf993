package zookeeper

import "strings"

// What is printed by mistake is printed into logs. A session holds credentials, ours
// and those by which the service knows it.

func (s *service) String() string {
	if s.cfg == nil {
		return "zookeeper backend"
	}
	return "zookeeper backend " + strings.Join(s.cfg.servers, ",")
}

func (s *service) GoString() string { return s.String() }

func (s *session) String() string   { return "zookeeper session " + hex(s.ID()) }
func (s *session) GoString() string { return s.String() }
