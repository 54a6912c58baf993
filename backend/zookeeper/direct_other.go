//go:build !unix

package zookeeper

import "net"

// directConn would write to a TCP connection without waiting.
type directConn struct{}

func newDirectConn(net.Conn) *directConn { return nil }

func (d *directConn) write([]byte) (int, error) { return 0, nil }
