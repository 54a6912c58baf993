package supervise

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/go-coord/coord/backend"
)

// Env is the variable that names the supervisor: "fd:NUMBER:INODE" for an inherited socket, "unix:PATH" for one to connect to.
const Env = "COORD_SUPERVISOR"

// MaxMessage is the longest message. Most is the largest number of sessions of one process.
const (
	MaxMessage = 512
	Most       = 64

	version      = 1
	mostService  = 32
	mostPassword = 64
	mostServer   = 255
)

// A Kind says what a message reports.
type Kind byte

// The kinds of messages.
const (
	Opened Kind = 1 + iota
	Ended
)

var errMessage = errors.New("supervise: a malformed message")

// Encode returns a message about a session. Only Opened has more than the service and the id of the ticket.
//
//	version 1, kind 1, id 8, length 1, service
//	of Opened also: timeout in milliseconds 4, length 1, password, length 1, server
func Encode(k Kind, t backend.Ticket) ([]byte, error) {
	if len(t.Service) > mostService || len(t.Password) > mostPassword || t.Timeout < 0 || t.Timeout.Milliseconds() > 1<<32-1 {
		return nil, errMessage
	}
	b := binary.BigEndian.AppendUint64([]byte{version, byte(k)}, uint64(t.ID))
	b = append(append(b, byte(len(t.Service))), t.Service...)
	if k != Opened {
		return b, nil
	}
	server := t.Server
	if len(server) > mostServer {
		server = "" // it only orders the servers
	}
	b = binary.BigEndian.AppendUint32(b, uint32(t.Timeout.Milliseconds()))
	b = append(append(b, byte(len(t.Password))), t.Password...)
	return append(append(b, byte(len(server))), server...), nil
}

// Decode decodes a message. The result shares no memory with it.
func Decode(b []byte) (Kind, backend.Ticket, error) {
	var t backend.Ticket
	if len(b) < 11 || len(b) > MaxMessage || b[0] != version {
		return 0, t, errMessage
	}
	k, ok := Kind(b[1]), true
	t.ID = int64(binary.BigEndian.Uint64(b[2:]))
	b = b[10:]
	field := func(most int) (f []byte) {
		if len(b) < 1 || int(b[0]) > most || int(b[0]) > len(b)-1 {
			ok = false
			return nil
		}
		f, b = b[1:1+b[0]], b[1+b[0]:]
		return f
	}
	t.Service = string(field(mostService))
	switch {
	case !ok, k != Opened && k != Ended:
		return 0, backend.Ticket{}, errMessage
	case k == Opened:
		if len(b) < 4 {
			return 0, backend.Ticket{}, errMessage
		}
		t.Timeout = time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond
		b = b[4:]
		if p := field(mostPassword); len(p) > 0 {
			t.Password = append([]byte(nil), p...)
		}
		t.Server = string(field(mostServer))
	}
	if !ok || len(b) > 0 {
		return 0, backend.Ticket{}, errMessage
	}
	return k, t, nil
}
