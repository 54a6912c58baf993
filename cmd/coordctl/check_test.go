//go:build linux

package main

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// TestAServerThatDoesNotServeIsNotOK: it answers so, or accepts the connection and says nothing.
// A server that may not answer srvr can serve all the same.
func TestAServerThatDoesNotServeIsNotOK(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, answer string
		want         serverState
	}{
		{"serves", "Zookeeper version: 3.8.0-5a02a05eddb5, built on 2022\nMode: follower\n", serverState{Version: "3.8.0", Mode: "follower", Reached: true}},
		{"does not serve", "This ZooKeeper instance is not currently serving requests\n", serverState{Error: "it is not serving requests: it is starting, or has no majority"}},
		{"says nothing", "", serverState{Error: "it accepts the connection, and does not answer within 2s"}},
		{"refuses the command", "srvr is not executed because it is not in the whitelist.\n", serverState{Error: "it does not answer srvr, so its version is not known", Reached: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var serving sync.WaitGroup
			serving.Go(func() {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				word := make([]byte, len("srvr"))
				if _, err := io.ReadFull(conn, word); err != nil || string(word) != "srvr" {
					t.Errorf("the command %q, %v", word, err)
				}
				if tc.answer == "" {
					_, _ = io.Copy(io.Discard, conn) // until the client gives up
				}
				_, _ = io.WriteString(conn, tc.answer)
			})
			defer serving.Wait()
			defer ln.Close()
			got := serverState{Addr: ln.Addr().String()}
			askZooKeeper(t.Context(), nil, &got)
			tc.want.Addr = got.Addr
			if got != tc.want {
				t.Errorf("the server is %+v, want %+v", got, tc.want)
			}
			text := (&tool{stdout: io.Discard}).checkText(&checked{Servers: []serverState{got}, RoundTrips: []float64{1}})
			if line, _, _ := strings.Cut(text, "\n"); strings.HasPrefix(line, "ok ") != tc.want.Reached || !strings.Contains(line, tc.want.Error) {
				t.Errorf("it prints %q", line)
			}
		})
	}
}
