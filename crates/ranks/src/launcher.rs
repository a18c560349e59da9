//! The launcher that started this process, by the variables that it sets.

use crate::{Error, Result};
use std::fmt;

/// Kinds of launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH, Intel MPI and MVAPICH (hydra).
    Hydra,
    /// `srun`.
    Slurm,
}

/// The launcher of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Its kind.
    pub kind: Kind,
    /// The variable that counts the processes.
    pub variable: &'static str,
    /// Processes that it has started.
    pub size: usize,
    /// Processes on this machine, where it says so.
    pub local: Option<usize>,
}

/// Value of a variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The launcher that the environment tells of; `None` if there is none, or this process is the only one.
///
/// # Errors
/// `Start` where several processes were started by something that is no launcher of MPI.
pub fn detect() -> Result<Option<Launcher>> {
    detect_from(&|name| std::env::var(name).ok())
}

/// As [`detect`], from other variables.
///
/// # Errors
/// As [`detect`].
pub fn detect_from(get: Variables) -> Result<Option<Launcher>> {
    let number = |name: &str| get(name).and_then(|text| text.trim().parse::<usize>().ok());
    // Each with a variable that counts the processes, one without which it is of another's, and one of this
    // machine.
    let known = [
        (Kind::OpenMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        (Kind::Hydra, "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
        (Kind::Slurm, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_NTASKS_PER_NODE"),
    ];
    for (kind, variable, rank, local) in known {
        if let (Some(size), Some(_)) = (number(variable), number(rank)) {
            let found = Launcher { kind, variable, size, local: number(local) };
            return Ok(Some(found).filter(|l| l.size > 1));
        }
    }
    let Some(size) = number("WORLD_SIZE").filter(|n| *n > 1) else { return Ok(None) };
    let pods = match number("LOCAL_RANK") {
        Some(_) => String::new(),
        None => {
            " (there is no LOCAL_RANK: without torchrun, WORLD_SIZE may count pods, each of several devices)"
                .into()
        }
    };
    Err(Error::Start(format!(
        "WORLD_SIZE asks for {size} ranks{pods}, and nothing here carries bytes between processes that torchrun or a PyTorchJob has \
         started: start them with mpirun, mpiexec, srun or an MPIJob, or unset WORLD_SIZE to train alone"
    )))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::OpenMpi => "mpirun of Open MPI",
            Kind::Hydra => "mpiexec (hydra)",
            Kind::Slurm => "srun",
        })
    }
}

impl Launcher {
    /// Names under which its MPI library may be found, the likeliest first. `None` stands for no launcher.
    pub fn libraries(of: Option<&Launcher>) -> Vec<&'static str> {
        let open = ["libmpi.so.40", "libmpi_abi_openmpi.so.1.0.0"];
        let mpich = ["libmpi.so.12", "libmpich.so.12", "libmpi_abi_mpich.so.1.0.0", "libmpi_cray.so.12"];
        // The standard interface's own name may lead to the library of another launcher: it is the last.
        let any = ["libmpi_abi.so.1", "libmpi_abi.so.0"];
        match of.map(|l| l.kind) {
            Some(Kind::OpenMpi) => [&open[..], &any].concat(),
            Some(Kind::Hydra) => [&mpich[..], &any].concat(),
            Some(Kind::Slurm) | None => [&open[..], &mpich, &any].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<Launcher>> {
        detect_from(&|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        let open = [
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let l = found(&open).unwrap().unwrap();
        assert_eq!((l.kind, l.size, l.local), (Kind::OpenMpi, 4, Some(2)));
        assert_eq!(Launcher::libraries(Some(&l))[0], "libmpi.so.40");
        let l = found(&[("PMI_SIZE", "3"), ("PMI_RANK", "0")]).unwrap().unwrap();
        assert_eq!((l.kind, l.size, l.local), (Kind::Hydra, 3, None));
        assert_eq!(Launcher::libraries(Some(&l))[0], "libmpi.so.12");
        let l = found(&[("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1"), ("WORLD_SIZE", "2")]);
        assert_eq!(l.unwrap().unwrap().kind, Kind::Slurm);
        // One process is no world, whatever started it.
        for alone in [&[][..], &[("PMI_SIZE", "1"), ("PMI_RANK", "0")], &[("WORLD_SIZE", "1")]] {
            assert_eq!(found(alone), Ok(None), "{alone:?}");
        }
    }

    #[test]
    fn several_processes_without_an_engine_are_refused() {
        let torchrun =
            found(&[("WORLD_SIZE", "4"), ("RANK", "1"), ("LOCAL_RANK", "1")]).unwrap_err().to_string();
        assert!(torchrun.starts_with("HW-R013: WORLD_SIZE asks for 4 ranks, and nothing"), "{torchrun}");
        assert!(torchrun.contains("start them with mpirun"), "{torchrun}");
        let pods = found(&[("WORLD_SIZE", "2"), ("RANK", "1")]).unwrap_err().to_string();
        assert!(pods.contains("may count pods"), "{pods}");
    }
}
