package zktest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// SessionPassword returns the password of a session, which ZooKeeper up to 3.8
// at least derives from the id: 16 bytes of java.util.Random, seeded with the
// id and a constant (ZooKeeperServer.generatePasswd).
func SessionPassword(id int64) []byte {
	const superSecret = 0xB3415C00
	const multiplier, increment, mask = 0x5DEECE66D, 0xB, 1<<48 - 1 // of java.util.Random
	seed := (uint64(id) ^ superSecret ^ multiplier) & mask
	passwd := make([]byte, 0, 16)
	for len(passwd) < 16 {
		seed = (seed*multiplier + increment) & mask
		passwd = binary.LittleEndian.AppendUint32(passwd, uint32(seed>>16))
	}
	return passwd
}

// ExpireSession ends a session on the server at addr, so that its owner finds it expired: it
// reconnects to the session with its id and password, and closes it. A nil password means
// SessionPassword(id). If the client reconnects first and keeps the session, ExpireSession
// tries again until ctx ends.
//
// The server answers alike for a missing session and a wrong password: both return nil.
func ExpireSession(ctx context.Context, addr string, id int64, passwd []byte) error {
	if passwd == nil {
		passwd = SessionPassword(id)
	}
	for {
		err := expireOnce(ctx, addr, id, passwd)
		if err == nil {
			return nil
		}
		if cause := pause(ctx); cause != nil {
			return fmt.Errorf("zktest: expire session %#x: %w", id, errors.Join(cause, err))
		}
	}
}

func expireOnce(ctx context.Context, addr string, id int64, passwd []byte) error {
	ctx, cancel := context.WithTimeout(ctx, fourLetterLimit)
	defer cancel()
	conn, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()

	// ConnectRequest: protocol version, last zxid seen, timeout, id, password, read-only.
	be := binary.BigEndian
	req := be.AppendUint32(nil, 0)
	req = be.AppendUint64(req, 0)
	req = be.AppendUint32(req, 10_000)
	req = be.AppendUint64(req, uint64(id))
	req = be.AppendUint32(req, uint32(len(passwd)))
	req = append(req, passwd...)
	req = append(req, 0)
	// ConnectResponse: protocol version, timeout, id, password, read-only.
	resp, err := exchange(conn, req)
	if err != nil {
		return err
	}
	if len(resp) < 16 {
		return fmt.Errorf("connect response of %d bytes", len(resp))
	}
	if got := int64(be.Uint64(resp[8:])); got == 0 || int32(be.Uint32(resp[4:])) <= 0 {
		return nil // ended already
	} else if got != id {
		return fmt.Errorf("got session %#x", got)
	}

	// RequestHeader: xid, opcode closeSession. ReplyHeader: xid, zxid, error.
	const closeSession = -11
	resp, err = exchange(conn, be.AppendUint32(be.AppendUint32(nil, 1), uint32(0x100000000+closeSession)))
	if err != nil {
		return err
	}
	if len(resp) < 16 {
		return fmt.Errorf("reply of %d bytes", len(resp))
	}
	if code := int32(be.Uint32(resp[12:])); code != 0 {
		return fmt.Errorf("close session: error %d", code)
	}
	return nil
}

// exchange writes one frame and reads one.
func exchange(conn net.Conn, req []byte) ([]byte, error) {
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(req))), req...)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > 1<<20 {
		return nil, fmt.Errorf("frame of %d bytes", n)
	}
	resp := make([]byte, n)
	_, err := io.ReadFull(conn, resp)
	return resp, err
}
