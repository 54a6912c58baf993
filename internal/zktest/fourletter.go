package zktest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A Role is the role that a server reports.
type Role string

// The roles.
const (
	Standalone Role = "standalone"
	Leader     Role = "leader"
	Follower   Role = "follower"
)

// ErrNotServing: the server answers, but has no role at the moment, because it is starting or
// has no majority.
var ErrNotServing = errors.New("not serving")

// fourLetterLimit bounds one command if ctx does not.
const fourLetterLimit = 2 * time.Second

// FourLetter sends a four-letter word ("srvr", "mntr", "wchs", …) and returns
// the answer.
func (s *Server) FourLetter(ctx context.Context, word string) (string, error) {
	answer, err := fourLetter(ctx, s.Addr(), word)
	if err != nil {
		return "", fmt.Errorf("zktest: server %d: %s: %w", s.id, word, err)
	}
	return answer, nil
}

func fourLetter(ctx context.Context, addr, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fourLetterLimit)
	defer cancel()
	conn, err := dial(ctx, addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	// All words except ruok and a few others are answered like this then.
	if strings.HasPrefix(string(answer), "This ZooKeeper instance is not currently serving requests") {
		return "", ErrNotServing
	}
	return string(answer), nil
}

// ctxConn is a connection that is closed when a context ends.
type ctxConn struct {
	net.Conn
	stop func() bool
}

func (c ctxConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	return ctxConn{conn, stop}, nil
}

// Role asks the server for its role. It does not wait for a role: the error matches
// ErrNotServing while there is none.
func (s *Server) Role(ctx context.Context) (Role, error) {
	st, err := s.srvr(ctx)
	return st.role, err
}

type srvrAnswer struct {
	role Role
	zxid int64
}

func (s *Server) srvr(ctx context.Context) (srvrAnswer, error) {
	if s.Paused() { // no need to wait for the answer
		return srvrAnswer{}, fmt.Errorf("zktest: server %d is paused", s.id)
	}
	text, err := s.FourLetter(ctx, "srvr")
	if err != nil {
		return srvrAnswer{}, err
	}
	var a srvrAnswer
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Mode":
			a.role = Role(value)
		case "Zxid":
			if a.zxid, err = strconv.ParseInt(value, 0, 64); err != nil {
				return srvrAnswer{}, fmt.Errorf("zktest: server %d: srvr: %w", s.id, err)
			}
		}
	}
	if a.role == "" {
		return srvrAnswer{}, fmt.Errorf("zktest: server %d: srvr: %w: answered %q", s.id, ErrNotServing, text)
	}
	return a, nil
}

// Mntr returns the answer to the word mntr as a map, for instance
// "zk_watch_count": "3".
func (s *Server) Mntr(ctx context.Context) (map[string]string, error) {
	text, err := s.FourLetter(ctx, "mntr")
	if err != nil {
		return nil, err
	}
	m := make(map[string]string)
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		if key, value, ok := strings.Cut(sc.Text(), "\t"); ok {
			m[key] = value
		}
	}
	return m, nil
}
