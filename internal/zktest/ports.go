package zktest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
)

var errPortTaken = errors.New("port taken")

const portsPerServer = 4

type portSet struct{ client, quorum, election, secure int }

func newPortSet(p []int) portSet { return portSet{p[0], p[1], p[2], p[3]} }

// The range of ports for servers. It lies below the ports that operating systems assign to
// outgoing connections and to listeners on port 0 (Linux: from 32768), so no process is
// assigned a server's port by chance while the server is down between Kill and Restart.
const (
	lowestPort  = 15000
	highestPort = 32000
)

// reserved has a UDP socket at each port that FreePorts has returned, until the process ends. The
// socket keeps the tests of other packages from choosing the port of a server that is down between
// Kill and Restart; no server here uses UDP.
var reserved struct {
	sync.Mutex
	sockets []net.PacketConn
}

// FreePorts returns n different ports for servers that were free a moment ago, and that no other
// caller of FreePorts gets while this process lives. Another program may take one before the
// server does: see portTaken.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	listeners := make([]net.Listener, 0, n)
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	var last error
	for range 200 * n {
		if len(ports) == n {
			return ports, nil
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		l, err := net.Listen("tcp4", loopback(port))
		if err != nil {
			last = err
			continue
		}
		mark, err := net.ListenPacket("udp4", loopback(port))
		if err != nil {
			l.Close()
			last = err
			continue
		}
		reserved.Lock()
		reserved.sockets = append(reserved.sockets, mark)
		reserved.Unlock()
		listeners = append(listeners, l)
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("zktest: no free ports: %w", last)
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// portTaken reports whether a server's log says that it could not listen on one of its ports.
// The server may be alive all the same: a leader whose quorum port is taken only returns to
// the election, and the others wait for it.
func (e *Ensemble) portTaken() bool {
	for _, s := range e.servers {
		log, err := os.ReadFile(s.LogFile())
		if err == nil && (bytes.Contains(log, []byte("Address already in use")) || bytes.Contains(log, []byte("java.net.BindException"))) {
			return true
		}
	}
	return false
}
