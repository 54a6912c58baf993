package zookeeper

import (
	"bytes"
	"encoding/binary"
	"io"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// shakeHands sends the connect request and reads the response.
func (c *guardConn) shakeHands() error {
	if err := c.conn.SetDeadline(c.until); err != nil {
		return err
	}
	if err := c.ask(); err != nil {
		return err
	}
	return c.readHello()
}

// ask sends the connect request. The server learns what the session has seen: one that is behind
// that refuses the session, so that it never sees the tree go back. The last byte says that a
// read-only server is not accepted; servers would log that a client without it is old.
func (c *guardConn) ask() error {
	s := c.session
	s.mu.Lock()
	c.fresh = s.id == 0
	out := encodeConnect(s.seen, s.cfg.times.Timeout, s.id, s.password)
	s.mu.Unlock()
	c.asked = s.now()
	_, err := c.conn.Write(out)
	return err
}

// readHello reads the response to a connect request.
func (c *guardConn) readHello() error {
	if _, err := io.ReadFull(c.r, c.head[:4]); err != nil {
		return err
	}
	size := int(int32At(c.head[:], 0))
	if size < 0 || size > zkBuffer {
		return forbidden(c.head[:4])
	}
	body, err := c.body(size, nil)
	if err != nil {
		return err
	}
	c.hello = append(bytes.Clone(c.head[:4]), body...)
	c.answer, err = parseConnectResponse(body)
	return err
}

// welcome makes the session use this connection. It replaces the timeout in the connect response,
// from which the zk client derives when to ping and when to give up on a silent server.
func (c *guardConn) welcome() error {
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	c.look = c.session.newLook()
	pretend, err := c.session.greet(c, c.answer, c.asked)
	if err != nil {
		return err
	}
	if c.fresh { // no request of the session has been sent yet
		c.session.cfg.reports.Opened(backend.Ticket{
			ID: c.answer.session, Password: []byte(c.answer.password),
			Timeout: time.Duration(c.answer.timeout) * time.Millisecond, Server: c.target.Address,
		})
	}
	binary.BigEndian.PutUint32(c.hello[4+timeoutFrom:], uint32(pretend))
	c.rest, c.hello = c.hello, nil
	c.greeted = true
	c.stall = time.Duration(pretend) * time.Millisecond * 2 / 3
	return c.present()
}

// dismiss ends a connection that is not used because another one is. If it has made a session, it
// closes that.
func (c *guardConn) dismiss() {
	defer c.fail(contact.ErrBeaten)
	if !c.fresh || c.answer.session == 0 {
		return
	}
	c.conn.SetDeadline(time.Now().Add(byeTime))
	if _, err := c.conn.Write(encodeClose(1)); err != nil {
		return
	}
	io.Copy(io.Discard, io.LimitReader(c.r, keepFrame)) // the server closes the connection behind its reply
}

// present sends the credentials, on each connection before everything else, and the look behind
// them. The zk client cannot do it: it sends again only credentials that it knows were accepted,
// and learns of that after the session is in use. It begins to write when it has read the connect
// response, so nothing else writes now.
func (c *guardConn) present() error {
	now := c.session.now()
	var out []byte
	if digest := c.session.cfg.digest; digest != nil {
		c.login = &now
		out = encodeAuth(digest())
	}
	if c.look != nil {
		c.look.at = now
		out = append(out, c.look.frames()...)
	}
	if len(out) == 0 {
		c.session.contact(c)
		return nil
	}
	c.conn.SetWriteDeadline(c.until)
	defer c.conn.SetWriteDeadline(time.Time{})
	_, err := c.conn.Write(out)
	return err
}

// loggedIn handles the answer to the credentials.
func (c *guardConn) loggedIn(code int32) error {
	at := c.login
	if at == nil {
		return errMalformed
	}
	c.login = nil
	if err := c.leave(code); err != nil {
		return err
	}
	if code != codeOK {
		return c.session.refusedLogin(code)
	}
	if err := c.answered(*at); err != nil {
		return err
	}
	return c.join()
}
