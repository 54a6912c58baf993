package coordtest

import (
	"context"
	"fmt"
	"os"
)

// KillByOthers kills a server as something else than the test would.
func KillByOthers(s *Server) {
	p, err := os.FindProcess(s.server.Pid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	for s.server.Alive() { // the end is noticed by a goroutine
	}
}

// Announce prints the processes of the servers of a service.
func Announce(s *Service) {
	if p, ok := s.provider.(*zooKeeperProvider); ok {
		for _, server := range p.zk.servers {
			fmt.Printf("\nserver %d\n", server.server.Pid())
		}
	}
}

// Mntr asks a server for its figures.
func Mntr(s *Server) (map[string]string, error) { return s.server.Mntr(context.Background()) }
