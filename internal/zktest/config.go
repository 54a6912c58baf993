package zktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// writeConfig writes zoo.cfg and, for an ensemble, the file myid.
func (s *Server) writeConfig(o Options) error {
	for _, dir := range []string{s.dir, s.DataDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Keys that zoo.cfg does not define become system properties "zookeeper.key".
	cfg := map[string]string{
		"tickTime":          strconv.FormatInt(o.TickTime.Milliseconds(), 10),
		"initLimit":         strconv.Itoa(o.InitLimit),
		"syncLimit":         strconv.Itoa(o.SyncLimit),
		"dataDir":           s.DataDir(),
		"clientPort":        strconv.Itoa(s.ports.client),
		"clientPortAddress": "127.0.0.1",
		"maxClientCnxns":    strconv.Itoa(o.MaxClientCnxns),

		"4lw.commands.whitelist": "*",
		"admin.enableServer":     "false",
		"preAllocSize":           "1024", // KiB; the default is 64 MiB for each log
		"forceSync":              "no",

		// An election that missed a message repeats it after at most this many milliseconds,
		// instead of a minute.
		"fastleader.maxNotificationInterval": "500",
	}
	if o.ForceSync {
		cfg["forceSync"] = "yes"
	}
	if o.MaxSessionTimeout > 0 {
		cfg["maxSessionTimeout"] = strconv.FormatInt(o.MaxSessionTimeout.Milliseconds(), 10)
	}
	if o.TLS != nil {
		o.TLS.configure(cfg, s.ports.secure)
	}
	if len(s.ensemble.servers) > 1 {
		for _, peer := range s.ensemble.servers {
			cfg[fmt.Sprintf("server.%d", peer.id)] = fmt.Sprintf("127.0.0.1:%d:%d", peer.ports.quorum, peer.ports.election)
		}
		if err := os.WriteFile(filepath.Join(s.DataDir(), "myid"), []byte(strconv.Itoa(s.id)), 0o644); err != nil {
			return err
		}
	}
	for k, v := range o.Config {
		cfg[k] = v
	}
	var lines []string
	for k, v := range cfg {
		// The file has the format of Java's properties.
		lines = append(lines, k+"="+strings.ReplaceAll(v, `\`, `\\`)+"\n")
	}
	slices.Sort(lines)
	return os.WriteFile(s.configFile(), []byte(strings.Join(lines, "")), 0o644)
}

func (s *Server) configFile() string { return filepath.Join(s.dir, "zoo.cfg") }

// command is a server with a small heap and the fastest start of the JVM. The environment
// variable COORD_SERVER_ARGS has further arguments, which Options.JavaArgs override.
func (s *Server) command() *exec.Cmd {
	args := []string{
		"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Djava.net.preferIPv4Stack=true",
		"-Dzookeeper.jmx.log4j.disable=true",
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-Dorg.slf4j.simpleLogger.showShortLogName=true",
		// The four-letter words of the polls would fill the log.
		"-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.NIOServerCnxn=warn",
		"-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.NettyServerCnxn=warn",
	}
	args = append(args, strings.Fields(os.Getenv("COORD_SERVER_ARGS"))...)
	args = append(args, s.javaArgs...)
	args = append(args, "-cp", s.inst.classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", s.configFile())
	cmd := exec.Command(s.inst.java, args...)
	if len(s.env) > 0 {
		cmd.Env = append(os.Environ(), s.env...)
	}
	cmd.Dir = s.dir // crash reports go there
	return cmd
}
