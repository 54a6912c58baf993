package zookeeper

import (
	"bytes"
	"runtime"
)

// Write sends a frame of the zk client. It never fails: the zk client learns of a broken
// connection from Read alone, which it can handle in every state. A failed Write can make it
// deadlock, and is reported in another way.
func (c *guardConn) Write(p []byte) (int, error) {
	s := c.session
	if s.isSealed() {
		return len(p), nil
	}
	if !c.introduced {
		c.introduced = true
		return len(p), nil
	}
	if len(p) < 12 {
		c.fail(errMalformed)
		return len(p), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.broken {
		c.aside = append(c.aside, &call{op: int32At(p, 8), xid: int32At(p, 4), frame: bytes.Clone(p)})
		s.writeLocked()
	}
	return len(p), nil
}

// waitsLocked reports whether there is something to write.
func (c *guardConn) waitsLocked() bool {
	return len(c.aside) > 0 || c.session.linked && c.session.queue.size > 0
}

// startLocked reports whether there is something to write and no writer. Then the caller has
// become the writer.
func (c *guardConn) startLocked() bool {
	if c.writing || c.session.isSealed() || !c.waitsLocked() {
		return false
	}
	c.writing = true
	return true
}

// flush writes all that waits, and ends when nothing waits. It runs on a goroutine of its own,
// since a write can block.
func (c *guardConn) flush() {
	defer c.session.work.Done()
	out := c.unwritten
	c.unwritten = nil
	if len(out) == 0 {
		// Other callers that are about to make a call do so now, and their requests are
		// written together with the first one.
		runtime.Gosched()
		out = c.take()
	}
	for ; len(out) > 0; out = c.take() {
		if _, err := c.conn.Write(out); err != nil {
			c.fail(err)
		}
	}
}

// flushNow is flush on the goroutine of a caller that is alone, which costs less than a
// goroutine of its own. The caller's context can end, so flushNow writes only what the
// operating system takes at once, and leaves the rest and later calls to flush.
func (c *guardConn) flushNow() {
	out := c.take()
	if len(out) == 0 {
		return
	}
	n, err := c.direct.write(out)
	if err != nil {
		c.fail(err)
	}
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	c.unwritten = out[n:]
	c.writing = !c.broken && !s.isSealed() && (len(c.unwritten) > 0 || c.waitsLocked())
	if c.writing {
		s.work.Add(1)
		go c.flusher()
	}
}

// take returns the frames to be written next, in memory of the writer: a call that is over
// uses its own again. It returns none, and the writer is writer no longer, if nothing is to be
// written. The frames of the zk client are behind the calls, so that the session is closed
// behind them.
func (c *guardConn) take() []byte {
	s := c.session
	now := s.now()
	s.mu.Lock()
	if cap(c.out) > fullBatch+keepFrame {
		c.out = nil
	}
	late := s.lease.Left(now) <= 0
	if late || c.broken || s.isSealed() || !c.waitsLocked() {
		c.writing = false
		over := late && !c.broken
		s.mu.Unlock()
		if over {
			s.lose(errUnheard)
		}
		return nil
	}
	defer s.mu.Unlock()
	c.out = c.takeLocked(c.out[:0], now)
	c.writing = len(c.out) > 0 // there is nothing if every call was withdrawn
	return c.out
}

func (c *guardConn) takeLocked(out []byte, now instant) []byte {
	s := c.session
	if s.linked {
		for s.queue.size > 0 && len(out) < fullBatch {
			call := s.queue.first
			s.queue.remove(call)
			if !s.hub.sending(call) {
				call.answer = answer{code: codeUnimplemented, failed: -1}
				s.overLocked(call, answered)
				continue
			}
			call.stage, call.xid, call.at = sent, c.nextXid(), now
			setXid(call.frame, call.xid)
			c.sent.push(call)
			out = append(out, call.frame...)
		}
		if s.queue.size > 0 {
			return out
		}
	}
	for _, call := range c.aside {
		if call.op == opPing {
			c.pings = append(c.pings, now)
		} else {
			call.at = now
			c.sent.push(call)
		}
		out = append(out, call.frame...)
	}
	c.aside = nil
	return out
}
