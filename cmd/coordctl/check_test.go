//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
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
		{"does not serve", "This ZooKeeper instance is not currently serving requests\n", serverState{Error: "the server is not serving requests: it is starting, or has no majority"}},
		{"closes the connection", "", serverState{Error: "the server closes the connection without an answer"}},
		{"says nothing", "", serverState{Error: "the server accepts the connection but does not answer within 2s"}},
		{"refuses the command", "srvr is not executed because it is not in the whitelist.\n", serverState{Error: "the server does not answer the command srvr, so its version is unknown", Reached: true}},
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
				if tc.name == "says nothing" {
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

// TestAMemberOfEtcdThatIsNotHealthyIsNotOK: without a leader, or with an alarm, it still answers /version.
func TestAMemberOfEtcdThatIsNotHealthyIsNotOK(t *testing.T) {
	t.Parallel()
	const version = `{"etcdserver":"3.6.13","etcdcluster":"3.6.0"}`
	for _, tc := range []struct {
		name            string
		version, health string // empty: not found
		status          int    // of health
		want            serverState
	}{
		{"healthy", version, `{"health":"true","reason":""}`, 200, serverState{Version: "3.6.13", Reached: true}},
		{"without a leader", version, `{"health":"false","reason":"RAFT NO LEADER"}`, 503, serverState{Version: "3.6.13", Error: "the server is not healthy: RAFT NO LEADER"}},
		{"of an older version", version, `{"health":"false"}`, 503, serverState{Version: "3.6.13", Error: "the server is not healthy: it answers /health with status 503"}},
		{"without an answer about its health", version, "", 0, serverState{Version: "3.6.13", Reached: true, Error: "the server does not answer /health, so its health is unknown"}},
		{"without a version", "", `{"health":"true"}`, 200, serverState{Reached: true, Error: "the server does not answer /version, so its version is unknown"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/version" && tc.version != "":
					fmt.Fprint(w, tc.version)
				case r.URL.Path == "/health" && tc.health != "":
					w.WriteHeader(tc.status)
					fmt.Fprint(w, tc.health)
				default:
					http.NotFound(w, r)
				}
			}))
			defer server.Close()
			got := serverState{Addr: strings.TrimPrefix(server.URL, "http://")}
			askEtcd(t.Context(), nil, &got)
			tc.want.Addr = got.Addr
			if got != tc.want {
				t.Errorf("the server is %+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestAClockThatIsOffIsMarked: also without colours, and in JSON.
func TestAClockThatIsOffIsMarked(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	answer := sent.Add(10 * time.Millisecond)
	for _, tc := range []struct {
		off  time.Duration
		ok   bool
		text string
	}{
		{0, true, "\nok      clock        the service is -4.5 ms from this machine"},
		{time.Hour, false, "\nWARN    clock        the service is +3599995.5 ms from this machine"},
		{-time.Hour, false, "\nWARN    clock        the service is -3600004.5 ms from this machine"},
		{-995 * time.Millisecond, true, "\nok      clock "}, // it can be less than a second
	} {
		k := compareClocks(sent.Add(tc.off), sent, answer)
		text := (&tool{stdout: io.Discard}).checkText(&checked{Clock: k, RoundTrips: []float64{1}})
		data, err := json.Marshal(k)
		if err != nil || k.OK != tc.ok || !strings.Contains(text, tc.text) || !strings.Contains(string(data), fmt.Sprintf(`"ok":%v`, tc.ok)) {
			t.Errorf("off by %v: %s, %v\n%s", tc.off, data, err, text)
		}
	}
}

// TestCheck_FindsTheLongestRequestOfAServer: a jute.maxbuffer below the default is marked, with the figure.
func TestCheck_FindsTheLongestRequestOfAServer(t *testing.T) {
	for _, want := range []int{65536, fullRequest} {
		o := &zktest.Options{JavaArgs: []string{fmt.Sprintf("-Djute.maxbuffer=%d", want)}}
		e := zktest.Run(t, o)
		status, out, text := inProcess(t, "", "-servers", e.Addrs()[0], "check", "--read-only", "--json")
		var got checked
		if err := json.Unmarshal([]byte(out), &got); err != nil || status != 0 || len(got.Servers) != 1 || got.Servers[0].Request != want {
			t.Errorf("check --json: status %d: %s%s", status, out, text)
		}
		status, out, text = inProcess(t, "", "-servers", e.Addrs()[0], "check")
		marked := strings.Contains(out, fmt.Sprintf("WARN    requests     %s reads at most %d bytes", e.Addrs()[0], want))
		if status != 0 || marked != (want < fullRequest) {
			t.Errorf("check: status %d: %s%s", status, out, text)
		}
	}
}
