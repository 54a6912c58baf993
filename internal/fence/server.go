package fence

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// A Server lets other processes write to registers.
type Server struct {
	listener net.Listener
	note     func(Write)
	wg       sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	conns     map[net.Conn]struct{}
	registers map[string]*Register
}

// Listen serves registers on a unix socket at path, which must be short. The first write to a
// register creates it. note, which may be nil, is called for every write before the write is
// answered, in the order of the writes.
func Listen(path string, note func(Write)) (*Server, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("fence: %w", err)
	}
	s := &Server{listener: l, note: note, conns: make(map[net.Conn]struct{}), registers: make(map[string]*Register)}
	s.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			if s.closed {
				s.mu.Unlock()
				conn.Close()
				return
			}
			s.conns[conn] = struct{}{}
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(conn) })
		}
	})
	return s, nil
}

// Register returns the register with a name.
func (s *Server) Register(name string) *Register {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.register(name)
}

func (s *Server) register(name string) *Register {
	r := s.registers[name]
	if r == nil {
		r = new(Register)
		s.registers[name] = r
	}
	return r
}

// Close ends all connections and returns when every one of them has ended.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.wg.Wait()
	return err
}

// serve answers lines "token hold" or "register token hold" with "accepted" or "refused". An
// invalid line ends the connection.
func (s *Server) serve(conn net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		conn.Close()
	}()
	for in := bufio.NewScanner(conn); in.Scan(); {
		words := strings.Fields(in.Text())
		name := ""
		if len(words) == 3 {
			name, words = words[0], words[1:]
		}
		var token int64
		if len(words) != 2 {
			return
		}
		if _, err := fmt.Sscan(words[0], &token); err != nil {
			return
		}
		answer := "refused\n"
		if s.write(name, token, words[1]).Accepted {
			answer = "accepted\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// write handles one write at a time, so that the notes are in order.
func (s *Server) write(name string, token int64, hold string) Write {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.register(name).Write(token, hold)
	w.Register = name
	if s.note != nil {
		s.note(w)
	}
	return w
}
