package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const becomeCommand = "become-container"

// image is what runs in place of a container image.
type image struct {
	Command []string          `json:"command"`
	Files   map[string]string `json:"files"`  // path in the container to path on the machine, or in the cluster's folder
	System  bool              `json:"system"` // needs the machine's libraries and programs
}

// imageName is the image without its registry and version.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	image = image[strings.LastIndex(image, "/")+1:]
	image, _, _ = strings.Cut(image, ":")
	return image
}

// spec is a container for the process that becomes it.
type spec struct {
	Root     string // an empty folder that the root is mounted on
	Network  string // name of the network namespace
	Hostname string
	System   bool
	ReadOnly bool
	Binds    []mount
	Files    map[string]string // path in the container to content
	Command  []string
	Env      []string
	Folder   string // working folder
	User     int
	Group    int
}

// mount shows a file or folder of the machine in a container.
type mount struct {
	From, To string
	ReadOnly bool
}

// command is a process that becomes the container, in its own namespaces. It dies with us.
func (s spec) command(file string) (*exec.Cmd, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	c := exec.Command("/proc/self/exe", becomeCommand, file)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWPID,
		Setpgid:    true,
	}
	return c, nil
}

// enter is a command in the namespaces and root of a running container.
func (s spec) enter(pid int, command []string) *exec.Cmd {
	target := strconv.Itoa(pid)
	c := exec.Command("nsenter", append([]string{"--target", target, "--mount", "--uts", "--net", "--pid", "--root", "--wd",
		"--setuid", strconv.Itoa(s.User), "--setgid", strconv.Itoa(s.Group), "--"}, command...)...)
	c.Env = s.Env
	c.Path, _ = exec.LookPath("nsenter")
	return c
}

// becomeContainer runs in the new namespaces: it builds the root, enters it and the pod's network, and turns into the
// container's program.
func becomeContainer(file string) error {
	runtime.LockOSThread()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	network, err := unix.Open("/run/netns/"+s.Network, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Setns(network, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("could not enter the network: %w", err)
	}
	if err := s.build(); err != nil {
		return fmt.Errorf("could not build the root: %w", err)
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return err
	}
	if err := unix.Chroot(s.Root); err != nil {
		return err
	}
	if err := unix.Chdir(s.Folder); err != nil {
		return err
	}
	if s.User != 0 || s.Group != 0 {
		if err := syscall.Setgroups([]int{s.Group}); err != nil {
			return err
		}
		if err := syscall.Setgid(s.Group); err != nil {
			return err
		}
		if err := syscall.Setuid(s.User); err != nil {
			return err
		}
	}
	program, err := lookUp(s.Command[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, s.Command, s.Env)
}

// build mounts the container's root: an empty folder with devices, the machine's libraries where they are needed, the
// image's files and the volumes.
func (s spec) build() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", s.Root, "tmpfs", 0, "mode=0755,size=256m"); err != nil {
		return err
	}
	for _, folder := range []string{"proc", "dev", "tmp", "etc", "var/lib", "run", "sys", "home"} {
		if err := os.MkdirAll(filepath.Join(s.Root, folder), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(s.Root, "var/run")); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(s.Root, "tmp"), 0o1777); err != nil {
		return err
	}
	if err := unix.Mount("proc", filepath.Join(s.Root, "proc"), "proc", 0, ""); err != nil {
		return err
	}
	if err := bind(mount{From: "/dev", To: filepath.Join(s.Root, "dev")}); err != nil {
		return err
	}
	if s.System {
		if err := bind(mount{From: "/usr", To: filepath.Join(s.Root, "usr"), ReadOnly: true}); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", filepath.Join(s.Root, "usr/local"), "tmpfs", 0, "mode=0755"); err != nil {
			return err // for the image's own files
		}
		for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
			if err := os.Symlink("usr/"+link, filepath.Join(s.Root, link)); err != nil {
				return err
			}
		}
		if err := bind(mount{From: "/etc/alternatives", To: filepath.Join(s.Root, "etc/alternatives"), ReadOnly: true}); err != nil {
			return err
		}
	}
	for path, content := range s.Files {
		path = filepath.Join(s.Root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, m := range s.Binds {
		path := m.To
		if strings.HasPrefix(path, "/var/run/") { // a link, which must not lead to the machine's folder
			path = strings.TrimPrefix(path, "/var")
		}
		if err := bind(mount{From: m.From, To: filepath.Join(s.Root, path), ReadOnly: m.ReadOnly}); err != nil {
			return fmt.Errorf("%s: %w", m.To, err)
		}
	}
	if s.ReadOnly {
		return unix.Mount("", s.Root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

// bind shows a file or folder of the machine at another path, which is made.
func bind(m mount) error {
	from, err := filepath.EvalSymlinks(m.From)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(m.To, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(m.To), 0o755); err == nil {
		if _, missing := os.Lstat(m.To); missing != nil {
			err = os.WriteFile(m.To, nil, 0o644)
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, m.To, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if m.ReadOnly {
		return unix.Mount("", m.To, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return nil
}

func lookUp(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	for _, folder := range strings.Split(containerPath, ":") {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %s in the image", name)
}
