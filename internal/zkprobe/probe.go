// Package zkprobe finds out how long a request a ZooKeeper server reads: its jute.maxbuffer.
package zkprobe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// A Dialer makes a connection on which nothing was sent yet.
type Dialer func(ctx context.Context) (net.Conn, error)

// Least is the length of the shortest frame that is tried. Servers that do not read it are of no use.
const Least = 1 << 10

// Limit returns the length of the longest frame that a server reads, without the four bytes of the
// length itself, or most if it reads that. Each attempt takes a connection of its own. It creates no
// session: it asks for one that nobody has, without its password, and the server refuses it.
//
// A limit below most was confirmed by further attempts, so that a server which drops connections
// for another reason is not judged. The error says why the limit is not known.
func Limit(ctx context.Context, dial Dialer, most int) (int, error) {
	reads := func(size int) (bool, error) { return Reads(ctx, dial, size) }
	if ok, err := reads(most); ok || err != nil {
		return most, err
	}
	low, high := min(Least, most-1), most // it reads low, and not high
	for first := true; first || high-low > 1; first = false {
		try := low
		if !first {
			try = (low + high) / 2
		}
		switch ok, err := reads(try); {
		case err != nil:
			return 0, err
		case ok:
			low = try
		case first:
			return 0, errors.New("the server drops connections, however short the request is")
		default:
			high = try
		}
	}
	for _, confirm := range []struct {
		size int
		want bool
	}{{high, false}, {low, true}, {high, false}} {
		switch ok, err := reads(confirm.size); {
		case err != nil:
			return 0, err
		case ok != confirm.want:
			return 0, errors.New("the server drops connections at random")
		}
	}
	return low, nil
}

// Reads reports whether a server reads a frame of that length. It does if it answers, and does not
// if it closes the connection.
func Reads(ctx context.Context, dial Dialer, size int) (bool, error) {
	conn, err := dial(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = conn.Write(request(size))
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 4))
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return false, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return false, fmt.Errorf("no answer to a request of %d bytes: %w", size, ctx.Err())
	}
	return false, err
}

// request returns a connect request of that length. Servers ignore what follows its fields.
func request(size int) []byte {
	const nobody = 1 // the ids of sessions begin with a server and a time
	b := binary.BigEndian.AppendUint32(nil, uint32(size))
	b = binary.BigEndian.AppendUint32(b, 0) // the version of the protocol
	b = binary.BigEndian.AppendUint64(b, 0) // the latest zxid seen
	b = binary.BigEndian.AppendUint32(b, 10_000)
	b = binary.BigEndian.AppendUint64(b, nobody)
	b = binary.BigEndian.AppendUint32(b, 16)
	b = append(b, make([]byte, 16+1)...) // the password, and no read-only server
	return append(b, make([]byte, max(0, 4+size-len(b)))...)
}
